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

from harness.analysis.cell import CellResult
from harness.analysis.comparison import SHAPE, Series, series_along
from harness.analysis.definitions import footnotes, metric
from harness.analysis.depth_optimum import DEPTH_SETTINGS
from harness.analysis.estimates import NOT_AVAILABLE, Estimate
from harness.analysis.ranking import Ranking, comparable
from harness.config.guarantee import RANDOM_WEIGHTS
from harness.report.cell_names import CONTEXT, label_suffix, varying
from harness.report.entries import estimate_number, metric_number, setting, settings_of
from harness.report.missing_values import missing_value_notes, table_notes
from harness.report.ranking_notes import CANNOT_BE_TOLD, ranking_notes
from harness.report.table import NONE, Entry, Table
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
    ranking: Ranking

    @classmethod
    def of(cls, line: Series) -> _Choice:
        baseline = line.first.baseline
        cells = line.cells if baseline is None else (baseline, *line.cells)
        return cls(cells, Ranking(comparable(cells)))

    @property
    def best(self) -> CellResult | None:
        return self.ranking.best

    def ratio(self, cell: CellResult) -> Estimate:
        """Throughput of a candidate / that of the best."""
        is_ranked = self.best is not None and cell in self.ranking.compared.cells
        return self.ranking.ratio(cell) if is_ranked else NOT_AVAILABLE

    def verdict(self, cell: CellResult) -> str:
        for each, reason in self.ranking.compared.left_out:
            if each is cell:
                return f"not ranked: {reason}"
        if self.best is None:
            return CANNOT_BE_TOLD
        return BEST if cell is self.best else EQUAL if self.ranking.equals(cell) else WORSE

    @property
    def equals(self) -> list[str]:
        return [_named(cell) for cell in self.cells if self.verdict(cell) == EQUAL]

    @property
    def left_out(self) -> str:
        """The candidates that are not ranked, with the reason."""
        return ", ".join(f"{_named(cell)} ({reason})" for cell, reason in self.ranking.compared.left_out)


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
    return ", ".join(text for text in texts if text)


def _settings(choice: _Choice, extra: Sequence[str], labelled: CellResult) -> list[Entry]:
    """Of all candidates, with the labels of one."""
    # a baseline is no method
    named = choice.cells[-1]
    return [*settings_of(named, extra), _method(named) + label_suffix(labelled)]


def _best_table(choices: Sequence[_Choice], extra: Sequence[str]) -> Table:
    beside = ["not ranked"] if any(choice.left_out for choice in choices) else []
    header = [*extra, "T", "drafter", "verification", "best K", "not told apart from it", *beside]
    header += ["throughput (tok/s)", "speedup"]
    names = ("output_tokens_per_s", "speedup")
    rows = [_best_row(choice, extra, names, has_left_out=bool(beside)) for choice in choices]
    found = [choice.best for choice in choices if choice.best is not None]
    notes = (SELECTION, *ranking_notes([choice.ranking for choice in choices]), *footnotes(names))
    return Table("Best draft depth", tuple(header), tuple(rows), (*notes, *missing_value_notes(found, names)))


def _best_row(choice: _Choice, extra: Sequence[str], names: Sequence[str], *, has_left_out: bool) -> tuple[Entry, ...]:
    best, beside = choice.best, [choice.left_out or NONE] if has_left_out else []
    if best is None:
        return (*_settings(choice, extra, choice.cells[-1]), CANNOT_BE_TOLD, NONE, *beside, *[NONE] * len(names))
    numbers = [estimate_number(best, name) for name in names]
    return (*_settings(choice, extra, best), _depth(best), ", ".join(choice.equals) or "none", *beside, *numbers)


def _throughput_table(choices: Sequence[_Choice], extra: Sequence[str]) -> Table:
    header = [*extra, "T", "drafter", "verification", "K", metric(METRICS[0]).label]
    header += ["tokens per forward", "round (ms)", "throughput (tok/s)", "throughput / that of the best K", "verdict"]
    rows = []
    for choice in choices:
        for cell in choice.cells:
            shown = [NONE if cell.is_baseline else estimate_number(cell, METRICS[0])]
            shown += [estimate_number(cell, name) for name in METRICS[1:]]
            beside = [cell, *([choice.best] if choice.best is not None else [])]
            share: Entry = metric_number(choice.ratio(cell), "output_tokens_per_s", style="length", cells=beside)
            share = setting(1) if cell is choice.best else share
            rows.append((*_settings(choice, extra, cell), _depth(cell), *shown, share, choice.verdict(cell)))
    cells = [cell for choice in choices for cell in choice.cells]
    notes = (SELECTION, *ranking_notes([choice.ranking for choice in choices]), ROUND, *table_notes(cells, METRICS))
    return Table("Throughput by draft depth", tuple(header), tuple(rows), notes)
