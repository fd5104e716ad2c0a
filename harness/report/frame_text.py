"""Columns of a data frame of results as text for people: a value and its interval, `2.21 [2.13, 2.29]`.

For notebooks; this module knows names of columns, not cells.
"""

from __future__ import annotations

import pandas as pd

from harness.analysis.columns import with_interval
from harness.analysis.definitions import metric
from harness.analysis.estimates import Estimate
from harness.report.number_format import format_estimate, without_width_zero


def with_intervals(frame: pd.DataFrame, name: str) -> pd.Series:
    """A metric with its interval, as the tables of a report print it.

    Args:
        frame: from `harness.analysis.load_results`.
        name: column of a metric, such as acceptance_rate; KeyError if it is none.

    Returns:
        Text for every row, named as the tables name the metric.
    """
    item = metric(name)
    estimates = (Estimate(*values) for values in frame[list(with_interval(name))].itertuples(index=False))
    texts = [format_estimate(each if item.of_tokens else without_width_zero(each), item.style) for each in estimates]
    return pd.Series(texts, index=frame.index, name=item.label)


def error_bars(frame: pd.DataFrame, name: str) -> tuple[pd.Series, pd.Series]:
    """How far the interval of a metric reaches below and above its value, for matplotlib; 0 where there is none."""
    value, low, high = (frame[column] for column in with_interval(name))
    return (value - low).fillna(0.0), (high - value).fillna(0.0)
