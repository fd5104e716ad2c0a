"""What a record says where other workers of its run computed beside it on the cores of one host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_MARK = "workers of this run"


def shared_cores(num_workers: int, device: str, measured_by: Mapping[str, Any]) -> tuple[str, ...]:
    """What a record must say if workers of a run computed at the same time on this host's cores.

    Args:
        num_workers: that run at the same time on this host.
        device: on which the cell ran; on a GPU threads wait for that.
        measured_by: `harness.records.provenance.provenance` of a worker.
    """
    num_threads, num_cores = measured_by["torch_threads"], measured_by["cpu"]["num_cores"]
    if num_workers < 2 or device != "cpu" or not num_threads or not num_cores:
        return ()
    threads = f"{num_threads} thread{'s' if num_threads > 1 else ''} each"
    if num_workers * num_threads > num_cores:
        return (
            f"{num_workers} {_MARK} with {threads} shared {num_cores} cores, so that their times disturb each other; "
            "give fewer --devices, or a smaller OMP_NUM_THREADS",
        )
    return (
        f"{num_workers} {_MARK} with {threads} ran at the same time on a host of {num_cores} cores, which share caches "
        "and memory: a cell beside which another worker ran may be slower than one that ran alone",
    )


def beside_other_workers(notes: Iterable[str]) -> list[str]:
    """Those of a record's notes that `shared_cores` made."""
    return [text for text in notes if _MARK in text]
