"""Turns recordings of a worker of another engine (harness.plugins) into records and terms; needs no torch."""
