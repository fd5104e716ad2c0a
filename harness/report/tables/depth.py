"""Tables of the draft depth: throughput against K, and the K that is best in each setting, with what equals it.

The best K is the one with the highest throughput that was observed, no drafting (K = 0) among the candidates. Another K
is told apart from it where the interval of their paired ratio leaves out 1. Depths that adapt are candidates beside
fixed ones, and so are the trees of one method, chains that are drafted as trees among them. Settings in which random
weights decide what is accepted are left out.
This module knows what to show; it does not know where it is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.metrics.cell import CellResult
from harness.metrics.comparison import SHAPE, Series, series_along
from harness.metrics.definitions import footnotes
from harness.metrics.depth_optimum import DEPTH_SETTINGS
from harness.metrics.estimates import Estimate, paired_ratio
from harness.report.cell_names import CONTEXT, label_suffix, varying
from harness.report.entries import estimate_number, metric_number, setting, settings_of
from harness.report.missing_values import missing_value_notes, table_notes
from harness.report.table import NONE, Entry, Table
from harness.settings.guarantee import RANDOM_WEIGHTS
from kernels.methods import Guarantee

BEST, EQUAL, WORSE = "best", "not told apart from the best", "worse"
SELECTION = (
    "best K: the highest throughput that was observed, K = 0 (no drafting) among the candidates. A K is not told apart "
    "from it where the interval of their paired ratio holds 1. The best was chosen on the same data, so its lead is "
    "overstated where several are close; no correction is made for the number of comparisons."
)
ROUND = (
    "round: the mean ITL, the time between the arrivals of two rounds of a request; while all slots are full, "
    "throughput is about slots * tokens per forward / that time."
)
METRICS = ("full_draft_length", "tokens_per_forward", "itl_mean_ms", "output_tokens_per_s")


@dataclass(frozen=True)
class _Choice:
    """The candidates of one setting and how each compares with the best."""

    cells: tuple[CellResult, ...]
    """By K, the baseline first where there is one."""
    best: CellResult
    ratios: tuple[Estimate, ...]
    """Throughput of each candidate / that of the best."""

    @classmethod
    def of(cls, line: Series) -> _Choice:
        baseline = line.first.baseline
        cells = line.cells if baseline is None else (baseline, *line.cells)
        best = max(cells, key=lambda cell: cell.estimate("output_tokens_per_s").value)
        ratios = (paired_ratio(best.estimates, cell.estimates, "output_tokens_per_s") for cell in cells)
        return cls(cells, best, tuple(ratios))

    def verdicts(self) -> list[str]:
        pairs = zip(self.cells, self.ratios, strict=True)
        return [BEST if cell is self.best else WORSE if ratio.high < 1 else EQUAL for cell, ratio in pairs]

    @property
    def equals(self) -> list[str]:
        pairs = zip(self.cells, self.verdicts(), strict=True)
        return [_named(cell) for cell, verdict in pairs if verdict == EQUAL]


def depth_tables(cells: Sequence[CellResult]) -> list[Table]:
    """The best K of each setting, and the throughput of every K; nothing where K does not vary.

    Args:
        cells: of any runs, baselines among them.
    """
    lines = series_along(cells, "drafting", "num_speculative_tokens", SHAPE, *DEPTH_SETTINGS)
    choices = [_Choice.of(line) for line in lines if not accepts_by_random_weights(line.first)]
    if not choices:
        return []
    extra = varying(cells, CONTEXT)
    return [_best_table(choices, extra), _throughput_table(choices, extra)]


def accepts_by_random_weights(cell: CellResult) -> bool:
    """Whether its acceptance, and so its throughput, says nothing about a trained model."""
    return RANDOM_WEIGHTS in cell["labels"] and cell["guarantee"] != Guarantee.synthetic.value


def _named(cell: CellResult) -> str:
    """K, what chooses the depth, and the shape of a tree."""
    texts = cell["depth"], f"tree {cell['tree']}" if cell["tree"] else ""
    beside = ", ".join(text for text in texts if text)
    return f"{cell['num_speculative_tokens']}" + (f" ({beside})" if beside else "")


def _depth(cell: CellResult) -> Entry:
    return _named(cell) if cell["tree"] or cell["depth"] else setting(int(cell["num_speculative_tokens"]))


def _method(cell: CellResult) -> str:
    """A method as the header of a column, without what tells the candidates apart."""
    texts = f"{cell['verification']}, {cell['draft_sampling']} drafts", cell["siblings"], cell.cache_text
    return ", ".join(text for text in texts if text) + label_suffix(cell)


def _settings(choice: _Choice, extra: Sequence[str]) -> list[Entry]:
    first = choice.cells[-1]
    return [*settings_of(first, extra), _method(first)]


def _best_table(choices: Sequence[_Choice], extra: Sequence[str]) -> Table:
    header = [
        *extra,
        "T",
        "drafter",
        "verification",
        "best K",
        "not told apart from it",
        "throughput (tok/s)",
        "speedup",
    ]
    names = ("output_tokens_per_s", "speedup")
    rows = [
        (
            *(*_settings(choice, extra), _depth(choice.best), ", ".join(choice.equals) or "none"),
            *(estimate_number(choice.best, name) for name in names),
        )
        for choice in choices
    ]
    notes = (SELECTION, *footnotes(names), *missing_value_notes([choice.best for choice in choices], names))
    return Table("Best draft depth", tuple(header), tuple(rows), notes)


def _throughput_table(choices: Sequence[_Choice], extra: Sequence[str]) -> Table:
    header = [*extra, "T", "drafter", "verification", "K", "acceptance length, full drafts", "tokens per forward"]
    header += ["round (ms)", "throughput (tok/s)", "throughput / that of the best K", "verdict"]
    rows = []
    for choice in choices:
        for cell, ratio, verdict in zip(choice.cells, choice.ratios, choice.verdicts(), strict=True):
            shown = [NONE if cell.is_baseline else estimate_number(cell, "full_draft_length")]
            shown += [estimate_number(cell, name) for name in METRICS[1:]]
            share: Entry = metric_number(ratio, "output_tokens_per_s", style="length", cells=[cell, choice.best])
            share = setting(1) if cell is choice.best else share
            rows.append((*_settings(choice, extra), _depth(cell), *shown, share, verdict))
    cells = [cell for choice in choices for cell in choice.cells]
    notes = (SELECTION, ROUND, *table_notes(cells, METRICS))
    return Table("Throughput by draft depth", tuple(header), tuple(rows), notes)
