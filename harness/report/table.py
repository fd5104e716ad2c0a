"""A table: typed entries, and how they are written as Markdown and CSV.

As LaTeX: `harness.report.latex`, in a page: `harness.report.html`. This module does not know what a table is about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from harness.report.files import csv_text
from harness.report.number_format import NOT_AVAILABLE, Number

NONE = "–"
MISSING = ("", NONE, NOT_AVAILABLE)
"""Printed where there is no value."""
Entry: TypeAlias = str | Number
Item = TypeVar("Item")
ColumnOf: TypeAlias = tuple[str, Callable[[Item], Entry | None]]
"""A header, and what a column shows of an item; None where there is no value."""


@dataclass(frozen=True)
class Table:
    """A table; every renderer prints its entries in its own way."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    notes: tuple[str, ...] = ()
    """Definitions, and what a reader must know, printed below the table."""
    above: str = ""
    """Printed above the table."""
    keeps_measured: bool = False
    """Whether numbers with intervals keep their column also where all happen to be the same."""

    @property
    def texts(self) -> tuple[tuple[str, ...], ...]:
        """The rows as printed."""
        return tuple(tuple(map(str, row)) for row in self.rows)

    def is_number_column(self, index: int) -> bool:
        """Whether everything that a column has is a number."""
        shown = [row[index] for row in self.rows if not is_missing(row[index])]
        return bool(shown) and all(isinstance(entry, Number) for entry in shown)

    @property
    def compact(self) -> Table:
        """The same without columns that never change: what they hold stands above the table, once.

        The first column stays, and so does a table of one row. Dashes do not count, but beside a number with an
        interval: it was measured of some rows and not of others.
        """
        if len(self.rows) < 2:
            return self
        columns = list(zip(*self.texts, strict=True))
        values = [list(dict.fromkeys(text for text in column if text != NONE)) for column in columns]
        entries = list(zip(*self.rows, strict=True))
        kept = [
            index
            for index, found in enumerate(values)
            if index == 0 or len(found) > 1 or (self._keeps(columns[index]) and any(map(_has_interval, entries[index])))
        ]
        said = [
            f"{self.header[index]}: {found[0]}"
            for index, found in enumerate(values)
            if index not in kept and found and found[0]
        ]
        return replace(
            self,
            header=tuple(self.header[index] for index in kept),
            rows=tuple(tuple(row[index] for index in kept) for row in self.rows),
            above="; ".join([*([self.above] if self.above else []), *said]),
        )

    def _keeps(self, column: Sequence[str]) -> bool:
        return self.keeps_measured or NONE in column

    def to_markdown(self, *, title: bool = True, compact: bool = True) -> str:
        """GitHub-flavoured Markdown, the notes as a list below."""
        shown = self.compact if compact else self
        lines = [f"### {shown.title}", ""] if title else []
        lines += [_escaped(shown.above), ""] if shown.above else []
        lines += [_markdown_row(shown.header), _markdown_row(["---"] * len(shown.header))]
        lines += [_markdown_row(row) for row in shown.texts]
        return "\n".join([*lines, "", *(f"- {note}" for note in shown.notes), ""])

    def to_csv(self) -> str:
        """The entries as printed, with the header, without title and notes; all columns."""
        return csv_text(self.header, self.texts)


def table_of(title: str, items: Iterable[Item], columns: Sequence[ColumnOf[Item]]) -> Table:
    """A table with a row for each item."""
    return Table(title, tuple(name for name, _ in columns), tuple(row_of(item, columns) for item in items))


def row_of(item: Item, columns: Sequence[ColumnOf[Item]]) -> tuple[Entry, ...]:
    """What columns show of an item."""
    entries = [entry(item) for _, entry in columns]
    return tuple(NONE if entry is None else entry for entry in entries)


def _has_interval(entry: Entry) -> bool:
    return isinstance(entry, Number) and (entry.low is not None or bool(entry.values))


def is_missing(entry: Entry) -> bool:
    """Whether an entry has no value."""
    return entry.is_missing if isinstance(entry, Number) else entry in MISSING


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(_escaped, cells)) + " |"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
