"""Reads what a certification found, as a data frame: one row per cell and control.

This module knows the file certification.json; it does not know how it was made, and needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from harness.records.strict_json import at, parse_json, typed

CERTIFICATION = "certification.json"
COLUMNS = {
    "name": "the cell: method, drafts, dtype, truncation, and how it is simulated",
    "is_control": "wrong on purpose: it must be rejected",
    "verdict": "pass or FAIL of a cell, rejected or NOT REJECTED of a control, not supported",
    "num_samples": "requests whose first tokens were compared with the exact law",
    "acceptance_rate": "accepted draft tokens / draft tokens",
    "df": "degrees of freedom of the test",
    "statistic": "Pearson's chi-square",
    "p_value": "of the test; 0 where it is below the smallest double",
    "variation": "estimate of the total variation from the exact law, on average at most the true one; may be below 0",
    "variation_low": "lower end of its 99.9 % interval",
    "variation_high": "upper end of it",
    "detectable": "total variation that the test would have found with the power of the report",
}
"""Column -> definition."""


def load_certification(path: str | Path) -> pd.DataFrame:
    """Read the certification in a folder (or its certification.json): the columns of `COLUMNS`.

    Raises:
        ValueError: no such file, or one that is not a certification; the message names it.
    """
    file = Path(path)
    file = file / CERTIFICATION if file.is_dir() else file
    try:
        content = typed(Mapping[str, Any], parse_json(file.read_bytes()))
        outcomes = at("outcomes", typed, list[Mapping[str, Any]], content.get("outcomes"))
        rows = [{name: at(name, typed, _type_of(name), item.get(name)) for name in COLUMNS} for item in outcomes]
        return pd.DataFrame(rows, columns=list(COLUMNS))
    except (OSError, ValueError) as error:
        raise ValueError(f"{file}: expected a certification; {error}") from error


def _type_of(name: str) -> Any:
    """Of a column; numbers are missing where nothing was simulated, and a served engine has no controls."""
    return {"name": str, "verdict": str, "is_control": bool | None}.get(name, float | None)
