"""Reasoning parsers; `harness.engine.constraint.registry` finds them by name."""
