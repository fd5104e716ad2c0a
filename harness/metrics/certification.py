"""Reads what a certification found, as a data frame: one row per cell and control.

This module knows the file certification.json; it does not know how it was made, and needs no torch.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from harness.records.strict_json import parse_json

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
        outcomes = parse_json(file.read_bytes())["outcomes"]
        return pd.DataFrame([{name: item.get(name) for name in COLUMNS} for item in outcomes], columns=list(COLUMNS))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{file}: expected a certification, found {type(error).__name__}: {error}") from error
