"""What earlier sessions measured a cell with that is not the same here: the code, libraries, device, threads, server.

Most of it is known before a weight is loaded; the version of a server, once it answers. This module does not know what
follows from it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from harness.records.provenance import UNKNOWN, measured_with, served_by


@dataclass(frozen=True)
class Drift:
    """What earlier sessions measured a cell with that is not the same here."""

    differing: tuple[tuple[str, str, str], ...]
    """Name, what was found, and what is here."""
    is_accepted: bool
    """Whether the cell goes on, marked; else it is started anew."""

    def told(self, cells: str) -> str:
        """A line on the cells that it concerns."""
        words = "; ".join(f"{name}: found {found}, expected {here}" for name, found, here in self.differing)
        if self.is_accepted:
            return f"going on with cells that were measured with others, and marking them: {cells} ({words})"
        return (
            f"starting cells anew, since they were measured with others: {cells} ({words}); --accept-drift goes on "
            "with them and marks them"
        )


def drift_of(
    provenances: Iterable[Mapping[str, Any]], here: Mapping[str, str], unknown: Collection[str] = ()
) -> tuple[tuple[str, str, str], ...]:
    """What parts were measured with that is not the same here, unless some part is: name, found, expected.

    Args:
        provenances: of the parts.
        here: `measured_with` of this process.
        unknown: names of what is not known here, and counts as the same.
    """
    now, found = here, dict[str, tuple[str, str]]()
    for provenance in provenances:
        before = measured_with(provenance)
        differing = [name for name in {**before, **now} if before.get(name) != now.get(name) and name not in unknown]
        if not differing:
            # what was mixed with this was accepted then
            return ()
        found |= {name: (before.get(name, UNKNOWN), now.get(name, UNKNOWN)) for name in differing}
    return tuple((name, *values) for name, values in found.items())


def drift_of_server(
    provenances: Iterable[Mapping[str, Any]], here: Mapping[str, Any]
) -> tuple[tuple[str, str, str], ...]:
    """The same for the version of the server that measured parts; none where it, or the one here, is not known.

    Args:
        provenances: of the parts.
        here: that of what this process measures.
    """
    now, found = served_by(here), dict[str, tuple[str, str, str]]()
    for provenance in provenances:
        before = served_by(provenance)
        if before == now:
            # what was mixed with this was accepted then
            return ()
        found |= {name: (name, before[name], now[name]) for name in before if name in now}
    return tuple(found.values())
