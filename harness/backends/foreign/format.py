"""What a reader of a foreign format is. Knows none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from harness.analysis.converted import Reading
from harness.backends.foreign.content import Content


@dataclass(frozen=True)
class Asked:
    """What the user says beside the file."""

    depth: int | None = None
    """K of the run, where the file does not say it."""
    before: Content | None = None
    """An earlier snapshot of the same counters."""


@dataclass(frozen=True)
class Definitions:
    """Where tools that use the same words differ, each in a sentence."""

    mean: str
    """Over rounds (micro) or over requests (macro)."""
    bonus: str
    """What counts beside the accepted draft tokens."""
    denominators: str
    """Of rates: per draft token, per draft, by position."""
    last_step: str
    """What becomes of drafts that the end of an answer cuts."""
    warm_up: str
    """Which requests are in it."""


class ForeignFormat:
    """One kind of file of one tool."""

    title: ClassVar[str]
    source: ClassVar[str]
    """Files and version in which names and definitions were read."""
    seen: ClassVar[str] = ""
    """Output of the real program that it was run against; empty: of none."""
    definitions: ClassVar[Definitions]
    has_snapshots: ClassVar[bool] = False
    """Whether two files make a difference (`Asked.before`)."""

    def recognises(self, content: Content) -> bool:
        """Whether a file is of this kind, by what is in it."""
        raise NotImplementedError

    def read(self, content: Content, asked: Asked) -> tuple[Reading, ...]:
        """What it tells, part by part.

        Raises:
            ValueError: it lacks what such a file has, or contradicts itself; the message says where.
        """
        raise NotImplementedError
