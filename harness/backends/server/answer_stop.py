"""Where a served answer ends by a stop string, as the local engine ends it.

A server looks at the text after each step, so that it may send the tokens behind a stop string with those of its last
step: they are cut here. Its text needs no cut.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.backends.server.reply import Reply
from harness.engine.stop_strings import StopStrings
from harness.records.counts import Arrival
from harness.records.request import StopFound


def ended_by(reply: Reply, stops: StopStrings) -> tuple[StopFound | None, int | None]:
    """The stop string that ended an answer, and the number of tokens up to its end; None where none did, or the tokens
    do not show it."""
    ids = reply.token_ids
    place = stops.behind(()).first(ids)
    if place is not None:
        return stops.found_in(ids[: place + 1]), place + 1
    return None if reply.stop_string is None else StopFound(reply.stop_string, None), None


def first_tokens(arrivals: Sequence[Arrival], number: int) -> tuple[Arrival, ...]:
    """The arrivals of so many first tokens."""
    found: list[Arrival] = []
    for item in arrivals:
        if number > 0:
            found.append(item._replace(num_output_tokens=min(item.num_output_tokens, number)))
        number -= item.num_output_tokens
    return tuple(found)
