"""Writes how far a run is, for other shells, from its session's start to its end; does not know what workers do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from harness.records.run_status import RUNNING, STATUS, RunStatus, read_status
from harness.runner.manifest import Manifest
from harness.runner.plan.run_plan import RunPlan
from harness.runner.progress import Progress
from harness.runner.supervised_worker import SupervisedWorker

STATUS_S = 5.0
"""How often the status is written."""


class StatusFile:
    """The status of one session of a run."""

    def __init__(self, plan: RunPlan, progress: Progress, manifest: Manifest, clock: Callable[[], float]) -> None:
        """
        Args:
            plan: of the run.
            progress: knows the requests that are left.
            manifest: knows the cells that are finished.
            clock: seconds.
        """
        self._plan, self._progress, self._manifest, self._clock = plan, progress, manifest, clock
        self._started_s = clock()
        self._written_s: float | None = None
        self._ended_workers_s = 0.0
        self._earlier: RunStatus | None = None
        # a damaged one takes nothing but its number with it
        with suppress(ValueError):
            self._earlier = read_status(plan.folder)

    def worker_ended(self, worker: SupervisedWorker) -> None:
        """Count its time."""
        self._ended_workers_s += 0.0 if worker.begun_s is None else self._clock() - worker.begun_s

    def write(self, state: str, workers: Sequence[SupervisedWorker], devices_per_worker: int) -> None:
        """Write the status: now and then while the run goes on, and at once when its state has changed.

        Args:
            state: of `harness.records.run_status`.
            workers: those that have not ended.
            devices_per_worker: devices that each occupies.
        """
        now_s = self._clock()
        if state == RUNNING and self._written_s is not None and now_s - self._written_s < STATUS_S:
            return
        self._written_s = now_s
        begun = [worker.begun_s for worker in workers if worker.begun_s is not None]
        workers_s = self._ended_workers_s + sum(now_s - begun_s for begun_s in begun)
        is_first = self._earlier is None or self._plan.resume.is_fresh
        status = RunStatus(
            state=state,
            num_cells=len(self._plan.cells),
            num_finished=len(self._manifest.finished),
            num_failed=len(self._manifest.failed),
            running=tuple(worker.label for worker in workers if worker.label),
            num_requests_left=self._progress.num_left,
            num_requests_done=self._progress.num_done,
            num_devices=len(begun) * devices_per_worker,
            num_waiting=len(workers) - len(begun),
            elapsed_s=now_s - self._started_s,
            own_device_s=workers_s * devices_per_worker,
            loading_s=self._progress.loading_s,
            has_pace=self._progress.left_s is not None,
            command=self._plan.command_to_go_on,
            plan=self._plan.key,
            earlier_device_s=0.0 if is_first or self._earlier is None else self._earlier.device_s,
        )
        # records and checkpoints say it if nothing can be written
        with suppress(OSError):
            status.write(self._plan.folder)

    def withdraw(self) -> None:
        """This session has run nothing: put back what the one before has left."""
        with suppress(OSError):
            if self._earlier is None:
                (self._plan.folder / STATUS).unlink(missing_ok=True)
            else:
                self._earlier.write(self._plan.folder)
