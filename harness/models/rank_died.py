"""The error of a target that several processes compute, after one of them has ended; no torch here."""

from __future__ import annotations


class RankDiedError(RuntimeError):
    """A rank has ended or failed, so that the others compute nothing more in this process."""
