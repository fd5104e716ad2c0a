"""What stands below a table that shows acceptance beside its bound, where the two are not given the same.

This module knows metrics and settings of cells; it does not know how a table is laid out.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan

from harness.analysis.cell import CellResult

SHARE = "share_of_bound"
DRAFTED_ENDS = (
    "ends of sequence: a bound counts those that might be drafted, acceptance leaves out those that were. The share of "
    "the bound can therefore exceed 100 % by a few percent where answers are short, without chance, or fall short by "
    "as much. decoding.ignore_eos=true removes that."
)


def bound_notes(cells: Sequence[CellResult], names: Sequence[str]) -> list[str]:
    """DRAFTED_ENDS where it applies.

    Args:
        cells: of a table.
        names: columns of metrics that it shows.
    """
    is_open = (not cell["ignore_eos"] and not isnan(cell.estimate(SHARE).value) for cell in cells)
    return [DRAFTED_ENDS] if SHARE in names and any(is_open) else []
