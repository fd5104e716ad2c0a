"""A table as the page shows it: every entry with the key it sorts by, values told apart from intervals.

This module does not know what a table is about.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.report.number_format import Number
from harness.report.table import Entry, Table, is_missing


@dataclass(frozen=True)
class CellView:
    text: str
    """As printed, without the interval."""
    interval: str
    """In brackets, or empty; with what stands behind it."""
    sort_key: str
    """What the cell sorts by: a number in a column of numbers, text elsewhere; empty where there is none."""


@dataclass(frozen=True)
class ColumnView:
    label: str
    kind: str
    """number or text."""


@dataclass(frozen=True)
class TableView:
    anchor: str
    title: str
    has_heading: bool
    """Whether its title stands above it; otherwise that of its section does."""
    above: str
    columns: tuple[ColumnView, ...]
    rows: tuple[tuple[CellView, ...], ...]
    notes: tuple[str, ...]


def table_view(table: Table, anchor: str, *, has_heading: bool = True) -> TableView:
    """A table for the page.

    Args:
        anchor: name of its place in the page; a letter first, then letters, digits and dashes.
    """
    table = table.compact
    numeric = [table.is_number_column(index) for index in range(len(table.header))]
    columns = [
        ColumnView(label, "number" if is_number else "text")
        for label, is_number in zip(table.header, numeric, strict=True)
    ]
    rows = [tuple(_cell(entry, is_number) for entry, is_number in zip(row, numeric, strict=True)) for row in table.rows]
    return TableView(anchor, table.title, has_heading, table.above, tuple(columns), tuple(rows), table.notes)


def _cell(entry: Entry, is_number: bool) -> CellView:
    text = str(entry)
    if not isinstance(entry, Number) or entry.is_missing:
        return CellView(text, "", "" if is_missing(entry) else text)
    value = f"{entry.sign} {entry.value_text}".strip()
    return CellView(value, text[len(value) :].strip(), repr(float(entry.value)) if is_number else text)
