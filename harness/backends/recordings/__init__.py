"""Reads what a worker of another engine recorded (harness.plugins), as records and terms; needs no torch."""
