"""What a plan needs of this machine and may not find: packages, SLURM, a GPU, the programs of servers. No torch."""

from __future__ import annotations

import os
from collections.abc import Iterator

from harness.backends.server.check_server import check_server
from harness.config.backend import Local
from harness.config.cell import CellConfig
from harness.config.own_code import own_place
from harness.config.schema import SettingsError
from harness.config.tracker import TRACKING
from harness.records.without_torch import VISIBLE, why_no_gpu
from harness.report.trackers.tracker import tracker_of
from harness.runner.earlier_cells import cells_left
from harness.runner.optional_packages import check_optional_packages
from harness.runner.plan.run_plan import RunPlan


def check_machine(plan: RunPlan) -> None:
    """Look for what the cells need that have work left.

    Workers of a cluster find GPUs and servers where they run, which is not known here.

    Raises:
        SettingsError: with the first that is not there.
    """
    check_optional_packages(plan)
    _check_tracker(plan)
    try:
        plan.launcher.check()
    except ValueError as wrong:
        raise SettingsError(str(wrong)) from wrong
    if plan.launcher.is_remote:
        return
    lacking = list(_lacking(plan))
    # what is finished needs nothing any more
    left = {id(cell) for cell in cells_left(plan)} if lacking else {}
    for cell, error in lacking:
        if id(cell) in left:
            raise error


def _check_tracker(plan: RunPlan) -> None:
    if plan.tracking is None:
        return
    try:
        tracker_of(plan.tracking).check()
    except Exception as error:
        # of its libraries any
        raise SettingsError(f"{TRACKING}={plan.tracking.value}: {error}{own_place(error)}") from error


def _lacking(plan: RunPlan) -> Iterator[tuple[CellConfig, SettingsError]]:
    """Cells that need what is not here, and what that is."""
    found: dict[object, SettingsError | None] = {}
    for cell in plan.cells:
        if cell.is_served:
            key: object = repr((cell.server.command, cell.server.url, cell.server.model, cell.server.environment))
        elif cell.backend.kind == "local":
            key = cell.backend.device, cell.local.tensor_parallel, cell.local.compile, cell.local.graphs
        else:
            continue
        if key not in found:
            found[key] = _lack(plan, cell)
        error = found[key]
        if error is not None:
            yield cell, error


def _lack(plan: RunPlan, cell: CellConfig) -> SettingsError | None:
    if cell.is_served:
        try:
            check_server(cell.server)
        except SettingsError as error:
            return error
        return None
    name, _, index = cell.backend.device.partition(":")
    if name == "cpu":
        return None
    # --devices says it anew for each worker
    shown = plan.workers.devices[0]
    is_asked = name == "cuda"
    last = int(index or 0) + cell.local.tensor_parallel - 1 if is_asked else 0
    reason = why_no_gpu(os.environ.get(VISIBLE) if shown is None else shown, last)
    if reason is not None and not is_asked:
        return _lack_on_cpu(cell.local)
    if reason is None:
        return None
    return SettingsError(
        f"backend.device: expected a GPU for {cell.backend.device}, found none: {reason}; use cpu or auto"
    )


def _lack_on_cpu(backend: Local) -> SettingsError | None:
    try:
        backend.on("cpu")
    except ValueError as error:
        return SettingsError(str(error))
    return None
