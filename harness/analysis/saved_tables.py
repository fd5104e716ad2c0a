"""Reads tables/cells.csv of a report where the records of its run are not at hand, as in the tracked results.

This module knows where such tables lie and which columns they may have; it does not know records.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from harness.analysis.columns import TEXT_COLUMNS, column_names, is_count
from harness.records.csv_table import number, read_rows
from harness.records.files import SUFFIX
from harness.records.runs import CELLS
from harness.records.strict_json import at

CELLS_TABLE = Path("tables") / "cells.csv"
_POSITION = re.compile(r"acceptance_rate_per_pos_(\d+)")


def find_cell_tables(path: Path) -> list[Path]:
    """The tables to read instead of records; none where there are records, or no tables either.

    Args:
        path: a cells.csv, the folder of a report, or a folder of such folders.
    """
    if path.suffix == ".csv":
        return [path]
    if not path.is_dir() or any(path.glob(f"*{SUFFIX}")):
        return []
    folders = [path, *sorted(item for item in path.iterdir() if item.is_dir())]
    if any(any((folder / CELLS).glob(f"*{SUFFIX}")) for folder in folders):
        return []
    # the table of a report about several runs holds theirs
    tables = [folder / CELLS_TABLE for folder in folders if (folder / CELLS_TABLE).is_file()]
    return tables[:1] if (path / CELLS_TABLE).is_file() else tables


def read_cell_tables(paths: Sequence[Path]) -> pd.DataFrame:
    """The rows of some tables, with the columns of harness/analysis/COLUMNS.md.

    Columns that an older table does not have are empty.

    Raises:
        ValueError: a file that is not such a table; the message names it.
    """
    frames = [_read(path) for path in paths]
    num_positions = max(_num_positions(frame) for frame in frames)
    joined = pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0]
    joined = joined.reindex(columns=column_names(num_positions))
    texts = [name for name in joined.columns if name in TEXT_COLUMNS]
    # copied, as so many columns that were set one by one are slow to work with
    return joined.assign(**{name: joined[name].astype("str").fillna("") for name in texts}).copy()


def _read(path: Path) -> pd.DataFrame:
    try:
        rows = list(read_rows(path))
        if not rows:
            raise ValueError("found no rows")
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        unknown = [name for name in columns if name not in set(column_names(_num_positions(columns)))]
        if unknown or "cell_id" not in columns:
            found = f"the column {unknown[0]}" if unknown else "no column cell_id"
            raise ValueError(f"expected the columns of harness/analysis/COLUMNS.md, found {found}")
        return pd.DataFrame({name: at(name, _column, name, texts) for name, texts in columns.items()})
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: expected a table of cells; {error}") from error


def _column(name: str, texts: Sequence[str]) -> pd.Series[Any]:
    """A column of text as it stands, or of True and False, or of numbers: whole ones of counts, and where none is
    missing."""
    if name in TEXT_COLUMNS:
        return pd.Series(texts, dtype="str")
    if set(texts) <= {"True", "False"}:
        return pd.Series([text == "True" for text in texts])
    numbers = [number(text) if text else math.nan for text in texts]
    is_whole = all(re.fullmatch(r"-?\d{1,18}", text) for text in texts if text)
    if is_whole and all(texts):
        return pd.Series([int(text) for text in texts])
    if is_whole and is_count(name):
        return pd.Series([int(text) if text else pd.NA for text in texts], dtype="Int64")
    return pd.Series(numbers)


def _num_positions(columns: Iterable[str]) -> int:
    matches = map(_POSITION.fullmatch, columns)
    return max((int(match[1]) for match in matches if match), default=0)
