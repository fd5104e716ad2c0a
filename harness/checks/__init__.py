"""Judges or times something: one sub-package each."""
