"""Small facts that the generated chat turns are built from: what a thing is, two facts, an example or a use.

The tables in material/ were written for this project: one topic a line, fields separated by bars. The wording is
plain on purpose: a small model has to learn it.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

_MATERIAL = Path(__file__).parent / "material"


class Topic(NamedTuple):
    name: str
    field: str
    definition: str
    """Reads on from the name: '<name> is ...' without the name."""
    facts: tuple[str, str, str]

    @property
    def inline(self) -> str:
        """The name as it stands inside a sentence."""
        first, *rest = self.name.split(" ")
        lower = first if first.isupper() and len(first) > 1 else first.lower()
        return " ".join([lower, *rest])


def _read(name: str) -> list[Topic]:
    topics = []
    for line in (_MATERIAL / name).read_text().splitlines():
        topic, field, definition, first, second, third = line.split("|")
        topics.append(Topic(topic, field, definition, (first, second, third)))
    return topics


STEM = _read("stem.txt")
HUMANITIES = _read("humanities.txt")
