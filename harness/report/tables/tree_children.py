"""The table of trees: how often each child of a node is accepted, by its depth and its place among its siblings."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from harness.analysis.cell import CellResult
from harness.analysis.definitions import INTERVALS
from harness.analysis.tree_children import CHILD_RATE, ChildRate, child_rates
from harness.report.cell_names import CONTEXT, column_name, label_notes, varying
from harness.report.entries import setting, settings_of
from harness.report.number_format import Number, count
from harness.report.sections import TableKind
from harness.report.table import Entry, Table

TITLE = "Trees by depth and child"
RATES = (
    "The rates as verification=synthetic takes them are below the table, to three digits; they hold for trees that are "
    "no deeper and no wider, and are over the walks of this shape."
)


def tree_children_tables(cells: Sequence[CellResult]) -> list[Table]:
    """One table, with rows of every cell whose trees have a fixed shape and a node with several children; else none."""
    found = [(cell, child_rates(cell)) for cell in cells if not cell.is_baseline and not cell.record.has_failed]
    found = [(cell, rates) for cell, rates in found if rates]
    if not found:
        return []
    shown = [cell for cell, _ in found]
    extra = varying(shown, CONTEXT)
    header = [*extra, "T", "drafter", "verification", "tree", "depth", "child", "walks at its parent", CHILD_RATE.label]
    rows = [_row(cell, item, extra) for cell, rates in found for item in rates]
    notes = [f"{CHILD_RATE.label}: {CHILD_RATE.definition}.", INTERVALS, RATES]
    notes += [_as_setting(cell, rates, extra) for cell, rates in found]
    return [Table(TITLE, tuple(header), tuple(rows), (*notes, *label_notes(shown)))]


def _row(cell: CellResult, item: ChildRate, extra: Sequence[str]) -> tuple[Entry, ...]:
    number = Number(*item.estimate, style=CHILD_RATE.style)
    places = setting(item.depth), setting(item.child), count(item.num_walks)
    return (*settings_of(cell, extra), column_name(cell), cell["tree"], *places, number)


def _as_setting(cell: CellResult, rates: Sequence[ChildRate], extra: Sequence[str]) -> str:
    """The rates as a setting, behind the cell that they are of."""
    levels = [
        [f"{item.estimate.value:.3f}".rstrip("0").rstrip(".") for item in level]
        for _, level in groupby(rates, key=lambda item: item.depth)
    ]
    text = ",".join(f"[{','.join(level)}]" for level in levels)
    named = " ".join(str(cell[name]) for name in [*extra, "drafter"])
    return f"{named}, T = {cell['temperature']:g}, tree {cell['tree']}: verification.tree_rates=[{text}]"


TREE_CHILDREN = TableKind("tree_children", TITLE, lambda results: tree_children_tables(results.cells))
