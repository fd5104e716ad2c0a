"""Reads a CSV file as rows of text; an error names the place of damage. Does not know columns."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from harness.records.strict_json import shown


def read_rows(path: Path) -> Iterator[Mapping[str, str]]:
    """The rows of a file, each by column.

    Raises:
        ValueError: it is no table: no text, a name twice in its header, a row with another number of fields, or an end
            within a line. The message names the line. Rows before it were returned.
        OSError: it cannot be read.
    """
    text = path.read_bytes().decode()
    if not text.endswith("\n"):
        raise ValueError(f"expected a table whose last line is whole, found {shown(text[-20:])} at the end")
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(reader)
        twice = next((name for name in header if header.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"expected each column once, found {shown(twice)} again")
        for row in reader:
            if len(row) != len(header):
                raise ValueError(f"line {reader.line_num}: expected {len(header)} fields, found {len(row)}")
            yield dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num}: expected a row of a table, found: {error}") from error


def number(text: str) -> float:
    """A finite number; raises ValueError where the text is none."""
    try:
        # what Python allows in its sources is no number in a file
        value = float(text) if "_" not in text and text == text.strip() else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"expected a finite number, found {shown(text)}")
    return value
