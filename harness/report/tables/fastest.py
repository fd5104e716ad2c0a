"""Table of the fastest cell of each setting among all drafters, depths, trees and methods, with what equals it.

Cells of one baseline are candidates beside each other, and the baseline is one; lossless methods, and synthetic
acceptance by itself. Settings in which random weights decide what is accepted are left out, and so are those with one
drafter and method, whose depths have tables of their own.
This module knows what to show; it does not know where it is written.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.cell import CellResult
from harness.analysis.ranking import Ranking, comparable
from harness.report.cell_names import CONTEXT, column_name, drafter_name, label_suffix, varying
from harness.report.entries import estimate_number, setting
from harness.report.missing_values import table_notes
from harness.report.ranking_notes import CANNOT_BE_TOLD, ranking_notes
from harness.report.table import NONE, Entry, Table
from harness.report.tables.depth import accepts_by_random_weights
from kernels.methods import Guarantee

METRICS = ("output_tokens_per_s", "speedup")
NAMED = 4
"""As many cells are named beside the fastest."""
NO_DRAFTS = "no drafts"
SELECTION = (
    "fastest: the highest throughput that was observed among the cells of lossless methods that share a baseline, and "
    "the baseline itself; cells of synthetic acceptance have a line of their own. A cell is not told apart from the "
    "fastest where the interval of their paired ratio holds 1. The fastest was chosen on the same data, so its lead is "
    "overstated where several are close; no correction is made for the number of comparisons."
)


def fastest_tables(cells: Sequence[CellResult]) -> list[Table]:
    """One table, where some setting was run with several drafters, methods or ways of drafting; else none.

    Args:
        cells: of any runs, baselines among them.
    """
    found: dict[tuple[str, str, str], list[CellResult]] = {}
    for cell in cells:
        competes = cell["guarantee"] in (Guarantee.lossless.value, Guarantee.synthetic.value)
        if competes and _is_candidate(cell) and cell.baseline is not None:
            key = cell["run"], cell.baseline.record.cell_id, cell["guarantee"]
            found.setdefault(key, [cell.baseline]).append(cell)
    groups = [group for group in found.values() if len({_way(cell) for cell in group[1:]}) > 1]
    if not groups:
        return []
    extra = varying([group[0] for group in groups], CONTEXT)
    has_drafters = len({drafter_name(cell) for group in groups for cell in group[1:]}) > 1
    rankings = [Ranking(comparable(group)) for group in groups]
    beside = ["not ranked"] if any(ranking.compared.left_out for ranking in rankings) else []
    header = (*extra, "T", "fastest", "not told apart from it", *beside, "throughput (tok/s)", "speedup")
    rows = [
        _row(group, ranking, extra, has_drafters, has_left_out=bool(beside))
        for group, ranking in zip(groups, rankings, strict=True)
    ]
    notes = (SELECTION, *ranking_notes(rankings), *table_notes([cell for group in groups for cell in group], METRICS))
    return [Table("Fastest", header, tuple(rows), notes)]


def _is_candidate(cell: CellResult) -> bool:
    return not (cell.is_baseline or cell.record.has_failed or accepts_by_random_weights(cell))


def _way(cell: CellResult) -> tuple[str, str]:
    """What is not a depth."""
    return drafter_name(cell), f"{cell['verification']}, {cell['draft_sampling']}, {cell.cache_text}"


def _row(
    group: Sequence[CellResult], ranking: Ranking, extra: Sequence[str], has_drafters: bool, has_left_out: bool
) -> tuple[Entry, ...]:
    settings = [setting(group[0][name]) for name in (*extra, "temperature")]
    left_out = "; ".join(f"{_name(cell, has_drafters)} ({reason})" for cell, reason in ranking.compared.left_out)
    beside = [left_out or NONE] if has_left_out else []
    best = ranking.best
    if best is None:
        return (*settings, CANNOT_BE_TOLD, NONE, *beside, *[NONE] * len(METRICS))
    others = sorted(
        (cell for cell in ranking.compared.cells if cell is not best and ranking.equals(cell)),
        key=lambda cell: -cell.estimate("output_tokens_per_s").value,
    )
    names = [_name(cell, has_drafters) for cell in others[:NAMED]]
    names += [f"{len(others) - NAMED} more"] if len(others) > NAMED else []
    numbers = [estimate_number(best, name) for name in METRICS]
    return (*settings, _name(best, has_drafters), "; ".join(names) or "none", *beside, *numbers)


def _name(cell: CellResult, has_drafters: bool) -> str:
    if cell.is_baseline:
        return NO_DRAFTS + label_suffix(cell)
    drafter = f"{drafter_name(cell)}, " if has_drafters else ""
    return f"{drafter}K = {cell['num_speculative_tokens']}, {column_name(cell)}"
