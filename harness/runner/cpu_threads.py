"""How many threads torch gets on a CPU, decided before it is imported where that can be.

On a busy machine threads spin while they wait for each other: beside a test suite on two cores, `prompt` took 8 times
as long with two of them as with one. The matrix products of so small a model gain nothing from a second one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from harness.config.cell import CellConfig
from harness.config.imported import was_brought

VARIABLE = "OMP_NUM_THREADS"


def choose_threads(cells: Iterable[CellConfig]) -> None:
    """Give torch one thread if all targets are the built-in model; larger ones get what torch takes by itself.

    A number in OMP_NUM_THREADS is kept, and so is that of a process that has imported torch, unless only the module of
    a drafter or method of the user's own did. Records hold the number (provenance, `torch_threads`).
    """
    if not all(cell.target.is_built_in for cell in cells):
        return
    if "torch" not in sys.modules:
        os.environ.setdefault(VARIABLE, "1")
    elif was_brought("torch") and VARIABLE not in os.environ:
        import torch

        torch.set_num_threads(1)
