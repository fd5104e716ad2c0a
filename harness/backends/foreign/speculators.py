"""speculators: acceptance.csv and perf_results.csv of scripts/evaluate/evaluate.py, on vLLM's counters.

Names and definitions were read in vllm-project/speculators at August 2026: scripts/evaluate/perf_utils.py.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping

from harness.analysis.converted import Given, Reading, Told
from harness.backends.foreign.content import Content
from harness.backends.foreign.format import Asked, Definitions, ForeignFormat
from harness.backends.foreign.printed import sums_of_rates
from harness.backends.foreign.vllm import BEYOND_END, BONUS, OF_DRAFTS

COLUMNS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
AT = "acceptance_at_pos_"


class SpeculatorsCsv(ForeignFormat):
    """A row for each subset of a benchmark."""

    title = "acceptance.csv and perf_results.csv of speculators' scripts/evaluate/evaluate.py"
    source = "vllm-project/speculators c05b95b3, scripts/evaluate/perf_utils.py"
    definitions = Definitions(
        mean="micro: the difference of vLLM's counters before and after a subset",
        bonus=BONUS,
        denominators=f"{OF_DRAFTS}; its positions count from 0",
        last_step=BEYOND_END,
        warm_up="guidellm's warm-up requests of the subset are in it, and in a sweep all its rates together",
    )

    def recognises(self, content: Content) -> bool:
        return {*COLUMNS, "acceptance_length"} <= {*content.text.partition("\n")[0].strip().split(",")}

    def read(self, content: Content, asked: Asked) -> tuple[Reading, ...]:
        rows = list(csv.DictReader(io.StringIO(content.text)))
        if not rows:
            raise ValueError("expected a row for each subset, found the header alone")
        # in a sweep a subset has several rows with the same counters
        found = {tuple(row[name] for name in ("subset", *COLUMNS) if name in row): row for row in rows}
        return tuple(_reading(row, asked) for row in found.values())


def _reading(row: Mapping[str, str], asked: Asked) -> Reading:
    try:
        counts = [float(row[name]) for name in COLUMNS]
        names = [name for name in row if name.startswith(AT) and row[name]]
        rates = {int(name.removeprefix(AT)): float(row[name]) for name in names}
        length = float(row["acceptance_length"])
    except (TypeError, ValueError) as error:
        raise ValueError(f"expected numbers in the row of {row.get('subset')}, found {error}") from error
    sums = {name: Given((count,)) for name, count in zip(COLUMNS, counts, strict=True)}
    if sorted(rates) != [*range(len(rates))]:
        raise ValueError(f"expected {AT}0, 1, .. in the row of {row.get('subset')}, found {', '.join(names)}")
    sums |= sums_of_rates([rates[place] for place in range(len(rates))], counts[0])
    told = (Told("acceptance_length", (length,), "1 + accepted / drafts, as ours"),)
    return Reading(sums, depth=len(rates) or asked.depth, told=told, label=row.get("subset") or "")
