"""Counters of a server's /metrics: read before and after a block, and what lies between."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from harness.backends.server.get import NoAnswer, get

START = "process_start_time_seconds"
POSITIONS = ("position", "token_position")
"""Labels that tell the positions of a draft apart; all other labels are summed over."""
SETTLED_AFTER_S = 0.05
NUM_READINGS = 20


class CountersReset(Exception):
    """The server was started anew between two readings, so that their difference means nothing."""


@dataclass(frozen=True)
class Counters:
    """Values of counters, or what was added to them."""

    values: Mapping[tuple[str, int | None], float] = field(default_factory=dict)
    """(name, position of a draft from 0 on) -> value."""

    @classmethod
    def parse(cls, text: str) -> Counters:
        """Read the text of /metrics.

        Raises:
            ValueError: it is not in the format of Prometheus.
        """
        found: dict[tuple[str, int | None], float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if not sample.name.endswith("_total") and sample.name != START:
                    continue
                place = next((sample.labels[name] for name in POSITIONS if name in sample.labels), None)
                key = sample.name, None if place is None else int(place)
                found[key] = found.get(key, 0.0) + sample.value
        return cls(found)

    def since(self, before: Counters) -> Counters:
        """What was added since an earlier reading.

        Raises:
            CountersReset: a counter is lower than it was, or the server is another one.
        """
        restarted = before.values.get((START, None)) != self.values.get((START, None))
        added = {key: value - before.values.get(key, 0.0) for key, value in self.values.items() if key[0] != START}
        gone = before.values.keys() - self.values.keys() - {(START, None)}
        if restarted or gone or any(value < 0 for value in added.values()):
            raise CountersReset("the server's counters were reset during a block, so its drafts are not known")
        return Counters(added)

    def total(self, name: str) -> int | None:
        """A counter without positions; None where the server has none of that name."""
        found = self.values.get((name, None))
        return None if found is None else round(found)

    def by_position(self, name: str) -> tuple[int, ...]:
        """The counters of all positions, without those at the end that stayed 0."""
        found = {place: value for (key, place), value in self.values.items() if key == name and place is not None}
        counts = [round(found.get(place, 0)) for place in range(1 + max(found, default=-1))]
        while counts and not counts[-1]:
            counts.pop()
        return tuple(counts)

    @property
    def reported(self) -> dict[str, float]:
        """Name -> value, with the position in braces; those that stayed 0 are left out."""
        return {
            name if place is None else f"{name}{{position={place}}}": value
            for (name, place), value in self.values.items()
            if value
        }


def read_counters(url: str, path: str) -> Counters | None:
    """The counters of the server at an address; None where there are none, or a page of something else."""
    try:
        return Counters.parse(get(url + path))
    except (NoAnswer, ValueError):
        return None


def settled_counters(url: str, path: str) -> Counters:
    """The counters once they stand still: a server may count after its answer.

    Raises:
        CountersReset: there are none any longer.
    """
    last = Counters()
    for _ in range(NUM_READINGS):
        found = read_counters(url, path)
        if found is None:
            raise CountersReset("the server told its counters before a block and no longer after it")
        if found == last:
            break
        last = found
        time.sleep(SETTLED_AFTER_S)
    return last
