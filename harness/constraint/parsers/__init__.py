"""Reasoning parsers, one file per kind of marker; `harness.constraint.registry` finds them by name."""
