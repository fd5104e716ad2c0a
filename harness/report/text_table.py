"""A table as lines of text that fit a terminal: narrower gaps first, then in parts, each with its first column.

This module does not know what a table is about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from textwrap import wrap

from harness.report.number_format import Number
from harness.report.table import Entry, Table

Column = tuple[list[str], list[str], bool]
"""Lines of the header, entries, and whether they are numbers."""


def text_lines(table: Table, width: int) -> list[str]:
    """The lines of a table without its title, none of them longer than `width` unless a single column is.

    Rates are whole percents. What never changes stands above, as in every other form of the table.
    """
    table = table.compact
    above = wrap(table.above, width, subsequent_indent="  ") if table.above else []
    columns = [_column(table, index) for index in range(len(table.header))]
    layouts = []
    for gap, is_tight in ((2, False), (1, False), (1, True)):
        shown = [_tight(column) for column in columns] if is_tight else columns
        layouts.append((_in_parts(shown, gap, width), gap))
    parts, gap = min(layouts, key=lambda layout: len(layout[0]))
    for narrower in range(width - 1, 0, -1):
        # as many parts, of one width as nearly as columns allow
        balanced = _in_parts([parts[0][0], *(column for part in parts for column in part[1:])], gap, narrower)
        if len(balanced) > len(parts):
            break
        parts = balanced
    return above + [line for part in parts for line in _lines(part, gap)]


def _in_parts(columns: Sequence[Column], gap: int, width: int) -> list[list[Column]]:
    """The columns in as few tables as fit, each of which begins with the first."""
    parts = [[columns[0]]]
    for column in columns[1:]:
        if len(parts[-1]) == 1 or _width([*parts[-1], column], gap) <= width:
            parts[-1].append(column)
        else:
            parts.append([columns[0], column])
    return parts


def _column(table: Table, index: int) -> Column:
    entries = [_text(row[index]) for row in table.rows]
    is_number = table.is_number_column(index)
    longest = max(map(len, entries), default=0)
    label = table.header[index]
    fitting = max(longest, *(len(word) for word in label.split()), 1)
    return wrap(label, fitting) or [""], entries, is_number


def _text(entry: Entry) -> str:
    if isinstance(entry, Number) and entry.style == "percent":
        return str(replace(entry, decimals=0, sign=""))
    return str(entry)


def _tight(column: Column) -> Column:
    """Intervals without the space behind their comma."""
    header, entries, is_number = column
    return header, [entry.replace(", ", ",") if is_number else entry for entry in entries], is_number


def _column_width(column: Column) -> int:
    return max(map(len, (*column[0], *column[1])))


def _width(columns: Sequence[Column], gap: int) -> int:
    return sum(map(_column_width, columns)) + gap * (len(columns) - 1)


def _lines(columns: Sequence[Column], gap: int) -> list[str]:
    height = max(len(header) for header, _, _ in columns)
    num_rows = len(columns[0][1])
    lines = []
    for place in range(-height, num_rows):
        parts = []
        for column in columns:
            header, entries, is_number = column
            text = ([""] * (height - len(header)) + header)[place] if place < 0 else entries[place]
            size = _column_width(column)
            parts.append(text.rjust(size) if is_number else text.ljust(size))
        lines.append((" " * gap).join(parts).rstrip())
    return lines
