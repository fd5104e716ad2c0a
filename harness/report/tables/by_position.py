"""Tables of one block: acceptance by position, length and speed of every method, and what each gains on a reference.

This module knows what to show; it does not know which blocks a page has room for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isnan

from harness.analysis.cell import CellResult
from harness.analysis.definitions import metric
from harness.analysis.estimates import paired_difference
from harness.report.blocks import Block, own_labels
from harness.report.cell_names import varying
from harness.report.entries import estimate_number
from harness.report.number_format import Number, format_value
from harness.report.table import NONE, Entry, Table
from harness.report.tables.depth import accepts_by_random_weights
from harness.report.tables.methods import difference, throughput_ratio
from harness.report.tables.summary import counting_every_round

MAX_POSITIONS = 8
"""Further ones stand in the tables behind the page."""
LENGTHS = ("full_draft_length", "mean_acceptance_length")
"""The acceptance length, and what stands for it where rounds are not known."""
TIMES = ("output_tokens_per_s", "speedup")
SHORT = {"full_draft_length": "acceptance length", "output_tokens_per_s": "tokens/s"}


def position_metrics_of(cells: Sequence[CellResult]) -> list[str]:
    """The acceptance rates of the first positions, as far as any of the cells has them."""
    last = max((cell.estimates.sums.num_positions for cell in cells), default=0)
    names = [f"acceptance_rate_per_pos_{position}" for position in range(1, min(last, MAX_POSITIONS) + 1)]
    return [name for name in names if _is_known(name, cells)]


def length_metric(cells: Sequence[CellResult]) -> str | None:
    """Which acceptance length is known of any of the cells: that of full drafts wherever it can be."""
    return next((name for name in LENGTHS if _is_known(name, cells)), None)


def shown_metrics(cells: Sequence[CellResult]) -> list[str]:
    """The metrics that a table of these cells has, without those that none of them knows."""
    times = [name for name in TIMES if _is_known(name, cells)]
    if all(map(accepts_by_random_weights, cells)):
        return times
    length = length_metric(cells)
    lengths = [*([length] if length else []), *counting_every_round(cells)]
    return [*position_metrics_of(cells), *lengths, *times]


def _is_known(name: str, cells: Sequence[CellResult]) -> bool:
    return any(not cell.is_baseline and not isnan(cell.estimate(name).value) for cell in cells)


def rows_table(block: Block, title: str) -> Table:
    """One row a method, the baseline first; what never changes stands above."""
    names = shown_metrics(block.shown)
    rows: list[tuple[Entry, ...]] = []
    if block.baseline is not None:
        name = "no drafts" + own_labels(block.baseline, block.shared_labels)
        rows.append((name, NONE, *(_entry(block.baseline, each) for each in names)))
    for cell in block.shown:
        rows.append((block.label(cell), cell["guarantee"], *(_entry(cell, name) for name in names)))
    above = "; ".join([*_drafts(block), *block.shared_labels])
    return Table(
        title, ("method", "guarantee", *map(column_label, names)), tuple(rows), above=above, keeps_measured=True
    )


def _entry(cell: CellResult, name: str) -> Entry:
    """A metric; a dash for what a cell does not draft."""
    if not metric(name).of_tokens:
        return estimate_number(cell, name)
    is_beyond = "_per_pos_" in name and _position(name) > cell.estimates.sums.num_positions
    return NONE if cell.is_baseline or is_beyond else estimate_number(cell, name)


def differences_table(block: Block, title: str) -> Table | None:
    """What each method gains on the reference at every position, paired by prompt; None where nothing can differ."""
    if block.is_one_law or all(map(accepts_by_random_weights, block.shown)):
        return None
    names = [name for name in shown_metrics(block.shown) if name != "speedup"]
    rows: list[tuple[Entry, ...]] = []
    references = dict[str, None]()
    for group in block.groups:
        reference = block.reference_of(group)
        others = [cell for cell in group.cells if cell is not reference and cell in block.shown]
        if reference in block.shown and others:
            references[block.names[reference.record.cell_id]] = None
            rows += [(block.label(cell), *(_change(reference, cell, name) for name in names)) for cell in others]
    if not rows:
        return None
    header = ("method", *(_change_label(name) for name in names))
    return Table(f"{title}: gained on {', '.join(references)}", header, tuple(rows), keeps_measured=True)


def _change(first: CellResult, second: CellResult, name: str) -> Entry:
    """A paired difference, of a rate behind the two rates; of a throughput the ratio."""
    if name == "output_tokens_per_s":
        return throughput_ratio(first, second)
    found = difference(first, second, name)
    if not isinstance(found, Number) or "_per_pos_" not in name or found.is_missing or found.note:
        return found
    return replace(found, sign=f"{_rate(first, name)} → {_rate(second, name)}:")


def _rate(cell: CellResult, name: str) -> str:
    return format_value(cell.estimate(name).value, "percent")


def largest_gain(first: CellResult, second: CellResult) -> tuple[int, Number] | None:
    """The position at which the second cell gains most on the first, with both rates; None where none is known."""
    found = [
        (paired_difference(first.estimates, second.estimates, name).value, name)
        for name in position_metrics_of([first, second])
    ]
    found = [item for item in found if not isnan(item[0])]
    if not found:
        return None
    _, name = max(found)
    change = _change(first, second, name)
    return (_position(name), change) if isinstance(change, Number) else None


def _position(name: str) -> int:
    return int(name.rsplit("_", 1)[1])


def column_label(name: str) -> str:
    """What a column is called where all of them are explained below."""
    return f"position {_position(name)} (%)" if "_per_pos_" in name else SHORT.get(name, metric(name).label)


def _change_label(name: str) -> str:
    return "tokens/s (ratio)" if name == "output_tokens_per_s" else column_label(name)


def draws_differently(block: Block) -> bool:
    """Whether its cells draw their drafts in several ways."""
    return bool(varying([cell for cell in block.shown if not cell.record.has_failed], ["draft_sampling"]))


def _drafts(block: Block) -> list[str]:
    """How drafts are drawn, where the names of the methods do not say it."""
    if not draws_differently(block):
        return []
    found: dict[str, list[str]] = {}
    for cell in block.shown:
        found.setdefault(cell["draft_sampling"], []).append(block.names[cell.record.cell_id])
    most, *others = sorted(found.items(), key=lambda item: -len(item[1]))
    texts = [f"{', '.join(methods)}: {sampling}" for sampling, methods in others]
    return [f"drafts: {most[0]} ({'; '.join(texts)})"]
