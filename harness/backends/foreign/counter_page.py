"""Pages of counters: one snapshot since the start of a server, or the difference of two.

The page and the names of counters are read by the code that reads them in runs (`harness.backends.server.counters`,
the adapters).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from harness.analysis.converted import Reading, sums_of
from harness.backends.foreign.content import Content
from harness.backends.foreign.format import Asked, ForeignFormat

if TYPE_CHECKING:
    from harness.backends.server.counters import Counters

LIFETIME = (
    "one snapshot: everything since the server's start is in it, warm-up and earlier runs too; --before OTHER_SNAPSHOT "
    "gives what lies between two"
)
BETWEEN = "the difference of two snapshots: what the server did between them, for all its clients"
WARM_UP = "everything since the server's start; with --before what lies between the two snapshots"


def added_counters(content: Content, asked: Asked, prefix: str) -> tuple[Counters, str]:
    """The counters of a page, or what was added since the one before; and a note on which requests are in them.

    Args:
        content: the page.
        asked: `before` is the earlier page.
        prefix: of the names of the counters that are read.

    Raises:
        ValueError: it is no such page, holds several models, or counters were reset in between.
    """
    try:
        from harness.backends.server.counters import Counters, CountersReset
    except ImportError as error:
        raise ValueError(
            f"expected the package prometheus_client, which reads pages of counters, found none ({error}); "
            "pip install 'rejection-lab[server]'"
        ) from error
    models = sorted(
        set(re.findall(rf'^{re.escape(prefix)}\w+\{{[^}}]*model_name="([^"]*)"', content.text, re.MULTILINE))
    )
    if len(models) > 1:
        raise ValueError(f"expected counters of one model, found those of {', '.join(models)}: keep the lines of one")
    after = Counters.parse(content.text)
    if asked.before is None:
        return after, LIFETIME
    try:
        return after.since(Counters.parse(asked.before.text)), BETWEEN
    except CountersReset as error:
        raise ValueError(f"expected a snapshot of the same server taken before, found another: {error}") from error


class CounterPage(ForeignFormat):
    """Pages of one server's counters."""

    has_snapshots = True
    prefix: ClassVar[str]
    """Of the names of all its counters."""
    needed: ClassVar[str]
    """Beginning of the name of one that only a server with drafts has."""

    def recognises(self, content: Content) -> bool:
        return re.search(rf"^{re.escape(self.needed)}", content.text, re.MULTILINE) is not None

    def read(self, content: Content, asked: Asked) -> tuple[Reading, ...]:
        added, note = added_counters(content, asked, self.prefix)
        reading = self.of_counters(added, asked)
        return (replace(reading, notes=(note, *reading.notes)),)

    def of_counters(self, added: Counters, asked: Asked) -> Reading:
        """The same of counters, wherever they were read.

        Raises:
            ValueError: one is missing.
        """
        raise NotImplementedError


def steps_reading(added: Counters, counter: str, asked: Asked) -> Reading:
    """Counters that vLLM and llama.cpp name alike; both export accepted tokens of every position up to K.

    Args:
        added: the counters.
        counter: their names, with {} for what each counts.
        asked: K, where no position is exported.
    """
    from harness.backends.server.adapter import counts_of_steps

    # denominators by position follow later, with their reason
    counts = counts_of_steps(added, counter, depth=0)
    if counts is None:
        raise ValueError(f"expected {counter.format('drafts')} and its like, found a page without them")
    name = counter.format("accepted_tokens_per_pos")
    places = [place for key, place in added.values if key == name and place is not None]
    return Reading(sums_of([counts]), depth=1 + max(places) if places else asked.depth)
