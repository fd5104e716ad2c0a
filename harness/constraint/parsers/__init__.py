"""Reasoning parsers; `harness.constraint.registry` finds them by name."""
