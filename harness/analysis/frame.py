"""The results of runs as a data frame: one row per cell, every metric with its interval.

What the columns mean is in `harness.analysis.columns` (and COLUMNS.md). This module does not know how results are
printed.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from harness.analysis.answers import ANSWERS
from harness.analysis.beyond_positions import drafts_beyond
from harness.analysis.cell import CellResult
from harness.analysis.columns import COUNTS, OF_RECORD, POSITION_COUNTS, column_names, is_count, with_interval
from harness.analysis.comparison import unlike_baseline
from harness.analysis.results import read_results
from harness.analysis.saved_tables import find_cell_tables, read_cell_tables


def load_results(path: str | Path) -> pd.DataFrame:
    """Read results: one row per cell.

    Args:
        path: a run folder, a cells folder, one cell file, or a folder of run folders. Where the records are not there
            (raw records are not tracked), the report's tables/cells.csv, or a folder of reports.

    Returns:
        The columns of COLUMNS.md; each metric has `<metric>`, `<metric>_low` and `<metric>_high`. Columns that
        an older table lacks are empty.

    Warns:
        UserWarning: a record cannot be used and has no row; the message names its file.

    Raises:
        ValueError: nothing there or no file that is a record; the message names the path.
    """
    tables = find_cell_tables(Path(path))
    if tables:
        return read_cell_tables(tables)
    results = read_results(Path(path))
    for text in results.unreadable_records:
        warnings.warn(f"left out: {text}", stacklevel=2)
    return results_frame(results.cells)


def results_frame(cells: Sequence[CellResult]) -> pd.DataFrame:
    """One row per cell with the columns of harness/analysis/COLUMNS.md."""
    num_positions = max((cell.estimates.sums.num_positions for cell in cells), default=0)
    columns = column_names(num_positions)
    frame = pd.DataFrame([_row(cell, num_positions) for cell in cells], columns=columns)
    # a count that is unknown somewhere stays a whole number elsewhere; copied, as columns changed one by one are slow
    return frame.astype({name: "Int64" for name in columns if is_count(name) and frame[name].isna().any()}).copy()


def _count(total: float) -> int | None:
    """A sum as a whole number; None if it is not known."""
    return None if math.isnan(total) else int(total)


def _row(cell: CellResult, num_positions: int) -> dict[str, Any]:
    estimates = cell.estimates
    row = dict(cell.settings) | {"baseline_cell_id": cell.baseline.record.cell_id if cell.baseline else ""}
    row |= {name: getattr(cell.record, name) for name in OF_RECORD}
    row |= {"num_prompts": estimates.num_prompts}
    row |= {name: "; ".join(getattr(cell.record, name)) for name in ("fallbacks", "assumptions")}
    row |= {"drafter_positions": cell.record.drafter_positions, "drafts_beyond_positions": drafts_beyond(cell.record)}
    row |= {"shared_mass": math.nan if cell.record.shared_mass is None else cell.record.shared_mass}
    row |= {"aux_layers": "/".join(map(str, cell.record.aux_layers))}
    row |= {"beside_s": cell.record.beside_s, "speedup_bound": cell.speedup_bound, "disturbed": cell.disturbed}
    unlike = unlike_baseline(cell)
    row |= dict.fromkeys(ANSWERS) if unlike is None else unlike.columns
    row |= {"block_drift": math.nan if cell.drift is None else cell.drift}
    row |= {name: _count(estimates.total(name)) for name in COUNTS if name not in row}
    for position in range(1, num_positions + 1):
        for name in POSITION_COUNTS:
            row[f"{name}_{position}"] = _count(estimates.total(f"{name}_{position}"))
    for name in [*estimates.names(), "speedup"]:
        row |= dict(zip(with_interval(name), cell.estimate(name), strict=True))
    return row
