"""A printed table as the page shows it: every cell with the number it sorts by, values told apart from intervals.

This module knows text; it does not know what a table is about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.report.number_format import NOT_AVAILABLE, Printed, read_printed
from harness.report.table import Table

MISSING = ("", "–", NOT_AVAILABLE)
"""Printed where there is no value; sorted last either way."""


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
    columns: tuple[ColumnView, ...]
    rows: tuple[tuple[CellView, ...], ...]
    notes: tuple[str, ...]


def table_view(table: Table, anchor: str) -> TableView:
    """A table for the page.

    Args:
        anchor: name of its place in the page; a letter first, then letters, digits and dashes.
    """
    numeric = [_is_number_column([row[index] for row in table.rows]) for index in range(len(table.header))]
    columns = [
        ColumnView(label, "number" if is_number else "text")
        for label, is_number in zip(table.header, numeric, strict=True)
    ]
    rows = [tuple(_cell(text, is_number) for text, is_number in zip(row, numeric, strict=True)) for row in table.rows]
    return TableView(anchor, table.title, tuple(columns), tuple(rows), table.notes)


def _is_number_column(texts: Sequence[str]) -> bool:
    shown = [text for text in texts if text not in MISSING]
    return bool(shown) and all(read_printed(text) for text in shown)


def _cell(text: str, is_number: bool) -> CellView:
    found = read_printed(text)
    if found is None:
        return CellView(text, "", "" if text in MISSING else text)
    value, interval = _parts(text, found)
    return CellView(value, interval, repr(found.number) if is_number else text)


def _parts(text: str, found: Printed) -> tuple[str, str]:
    """The number, and what is printed behind it."""
    value = f"{found.sign} {found.value}".strip()
    return value, text[len(value) :].strip()
