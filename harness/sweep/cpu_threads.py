"""How many threads torch gets on a CPU, decided before it is imported: later its threads have been made.

On a busy machine threads spin while they wait for each other: beside a test suite on two cores, `prompt` took 8 times
as long with two of them as with one. The matrix products of so small a model gain nothing from a second one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from harness.settings.cell import CellConfig

VARIABLE = "OMP_NUM_THREADS"


def choose_threads(cells: Iterable[CellConfig]) -> None:
    """Give torch one thread if all targets are the built-in model; larger ones get what torch takes by itself.

    A number in OMP_NUM_THREADS is kept, and so is that of a process that has imported torch. Records hold the number
    (provenance, `torch_threads`).
    """
    if "torch" not in sys.modules and all(cell.target.is_built_in for cell in cells):
        os.environ.setdefault(VARIABLE, "1")


def shared_cores(num_workers: int, device: str, measured_by: Mapping[str, Any]) -> tuple[str, ...]:
    """What a record must say if the workers of a run have more threads than this host has cores.

    Args:
        num_workers: that run at the same time on this host.
        device: on which the cell ran; on a GPU threads wait for that.
        measured_by: `harness.records.provenance.provenance` of a worker.
    """
    num_threads, num_cores = measured_by["torch_threads"], measured_by["cpu"]["num_cores"]
    if num_workers < 2 or device != "cpu" or not num_threads or not num_cores or num_workers * num_threads <= num_cores:
        return ()
    return (
        f"{num_workers} workers with {num_threads} threads each shared {num_cores} cores, so that their times disturb "
        "each other; give fewer --devices, or a smaller OMP_NUM_THREADS",
    )
