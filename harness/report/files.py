"""Files of a report: what a program reads as JSON and CSV, and how all of them are written.

This module does not know what a report is about.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.config.view import plain_values
from harness.records.files import write_atomically


def json_text(content: Any) -> str:
    """JSON of nested values; a dataclass as its fields, an enum as its value."""
    return json.dumps(plain_values(content)) + "\n"


def csv_text(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A header and rows as CSV; empty where a value is None."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([header, *rows])
    return stream.getvalue()


def write_files(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write texts to a folder by their names; returns their paths.

    Raises:
        UnwritableError: one cannot be written.
    """
    for name, text in texts.items():
        write_atomically(folder / name, text.encode())
    return [folder / name for name in texts]


def write_between(path: Path, begin: str, end: str, text: str) -> None:
    """Put a text into a file between two marks, in the place of what is there."""
    before, _, rest = path.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    path.write_text(f"{before}{begin}{text}{end}{after}", encoding="utf-8")
