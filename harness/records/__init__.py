"""What a run leaves on disk and how it is read back: plain dataclasses, no torch, no settings objects."""


class InconsistentRecordError(ValueError):
    """A record that contradicts itself."""
