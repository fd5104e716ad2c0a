"""Tables of one block: acceptance by position, length and speed of every method, and what each gains on a reference.

This module knows what to show; it does not know which blocks a page has room for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isnan

from harness.analysis.cell import CellResult
from harness.analysis.comparison import method_name, same_law
from harness.analysis.definitions import metric
from harness.analysis.estimates import paired_difference
from harness.report.blocks import LENGTHS, Block, own_labels
from harness.report.cell_names import depth_text, varying
from harness.report.entries import estimate_number
from harness.report.figures.style import SAME_LAW_MARK
from harness.report.number_format import Number, format_value
from harness.report.table import NONE, Entry, Table
from harness.report.tables.depth import accepts_by_random_weights
from harness.report.tables.methods import difference, throughput_ratio
from harness.report.tables.summary import counting_every_round

MAX_POSITIONS = 8
"""Further ones stand in the tables behind the page."""
TIMES = ("output_tokens_per_s", "speedup")
SHORT = {"output_tokens_per_s": "tokens/s"}


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


def cells_of_rows(block: Block) -> list[list[CellResult]]:
    """The cells of each row: at temperature 0 those of one law and guarantee share one: only speed differs."""
    rows: list[list[CellResult]] = []
    for cell in block.shown:
        row = next((cells for cells in rows if _is_one_row(cells[0], cell)), None)
        if row is None:
            rows.append([cell])
        else:
            row.append(cell)
    return rows


def _is_one_row(first: CellResult, second: CellResult) -> bool:
    if not first.is_argmax or first.record.has_failed or second.record.has_failed:
        return False
    is_alike = depth_text(first) == depth_text(second) and first["guarantee"] == second["guarantee"]
    return is_alike and same_law(first, second)


def rows_table(block: Block, title: str) -> Table:
    """One row a method, the baseline first; what never changes stands above."""
    names = shown_metrics(block.shown)
    rows: list[tuple[Entry, ...]] = []
    if block.baseline is not None:
        name = "no drafts" + own_labels(block.baseline, block.shared_labels)
        rows.append((name, NONE, *(_entry(block.baseline, each) for each in names)))
    for cells in cells_of_rows(block):
        entries = (_in_one([_entry(cell, name) for cell in cells]) for name in names)
        rows.append((_row_name(block, cells), cells[0]["guarantee"], *entries))
    best = ["of each K and shape the method that keeps most"] if block.shows_best_of_each else []
    above = "; ".join([*best, *_drafts(block), *_parameters(block), *block.shared_labels])
    return Table(
        title, ("method", "guarantee", *map(column_label, names)), tuple(rows), above=above, keeps_measured=True
    )


def _row_name(block: Block, cells: Sequence[CellResult]) -> str:
    """The methods of a row, with the mark of one law where they are several."""
    *others, last = cells
    names = [block.names[cell.record.cell_id] for cell in others]
    return ", ".join([*names, block.label(last)]) + (f" {SAME_LAW_MARK}" if others else "")


def _in_one(entries: Sequence[Entry]) -> Entry:
    """The entries of several cells of one law: what all have, or from the smallest to the largest."""
    numbers = [entry for entry in entries if isinstance(entry, Number) and not entry.is_missing]
    if len(numbers) < len(entries) or len(set(map(str, entries))) == 1:
        return entries[0]
    least, most = (choose(numbers, key=lambda number: number.value) for choose in (min, max))
    if least.value_text == most.value_text:
        return most
    return replace(most, low=None, high=None, shown=f"{least.value_text} to {most.value_text}", sign=most.sign[:1])


def _entry(cell: CellResult, name: str) -> Entry:
    """A metric; a dash for what a cell does not draft."""
    if not metric(name).of_tokens:
        return estimate_number(cell, name)
    return NONE if cell.is_baseline or _is_beyond(cell, name) else estimate_number(cell, name)


def _is_beyond(cell: CellResult, name: str) -> bool:
    """Whether the metric is of a position that the cell does not draft."""
    return "_per_pos_" in name and _position(name) > cell.estimates.sums.num_positions


def differences_table(block: Block, title: str) -> Table | None:
    """What each method gains on the reference at every position, paired by prompt; None where nothing can differ."""
    if block.is_one_law or all(map(accepts_by_random_weights, block.shown)):
        return None
    names = [name for name in shown_metrics(block.shown) if name != "speedup"]
    rows: list[tuple[Entry, ...]] = []
    references = dict[str, None]()
    for group in block.groups:
        reference = block.reference_of(group)
        others = [cells for cells in cells_of_rows(block) if cells[0] in group.cells and reference not in cells]
        if reference in block.shown and others:
            references[block.names[reference.record.cell_id]] = None
            for cells in others:
                changes = (_in_one([_change(reference, cell, name) for cell in cells]) for name in names)
                rows.append((_row_name(block, cells), *changes))
    if not rows:
        return None
    header = ("method", *(_change_label(name) for name in names))
    return Table(f"{title}: gained on {', '.join(references)}", header, tuple(rows), keeps_measured=True)


def _change(first: CellResult, second: CellResult, name: str) -> Entry:
    """A paired difference, of a rate behind the two rates; of a throughput the ratio."""
    if name == "output_tokens_per_s":
        return throughput_ratio(first, second)
    if _is_beyond(first, name) and _is_beyond(second, name):
        return NONE
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
    """Whether its cells draw their drafts in several ways; at temperature 0 all are the same."""
    cells = [cell for cell in block.shown if not cell.record.has_failed and not cell.is_argmax]
    return bool(varying(cells, ["draft_sampling"]))


def _drafts(block: Block) -> list[str]:
    """How drafts are drawn, where the names of the methods do not say it."""
    if not draws_differently(block):
        return []
    found: dict[str, dict[str, None]] = {}
    for cell in block.shown:
        found.setdefault(cell["draft_sampling"], {})[block.names[cell.record.cell_id]] = None
    most, *others = sorted(found.items(), key=lambda item: -len(item[1]))
    texts = [f"for {', '.join(methods)}: {sampling}" for sampling, methods in others]
    return [f"drafts: {most[0]} ({'; '.join(texts)})"]


def _parameters(block: Block) -> list[str]:
    """Those that all rows of a method have alike."""
    shown = {method_name(cell): None for cell in block.shown}
    return [
        f"{method}: {', '.join(texts)}"
        for method, texts in block.shared_parameters.items()
        if texts and method in shown
    ]
