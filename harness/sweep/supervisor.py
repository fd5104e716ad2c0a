"""Runs a plan in worker processes, one per device, so that what ends a process does not end the sweep; no torch here.

A worker gets one group of comparable cells after the other. Its events feed one progress display and one manifest. If
it dies, or nothing comes from it for too long, the cell that it worked on has failed, and a new worker goes on with the
rest of the group.
"""

from __future__ import annotations

import multiprocessing
import secrets
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from harness.compose.run_plan import RunPlan
from harness.records.run_status import DONE, RUNNING, STOPPED, RunStatus, read_status
from harness.records.schema import Failure
from harness.settings.schema import SettingsError
from harness.sweep.manifest import Manifest
from harness.sweep.progress import Progress, duration
from harness.sweep.stop_signals import STOP_SIGNALS, blocked, stop_signals
from harness.sweep.turns import Group, groups_of
from harness.sweep.worker import work

END_S = 30.0
"""How long a worker may take to end when all is done."""
STATUS_S = 5.0
"""How often the status is written."""


class StoppedBySignal(KeyboardInterrupt):
    """A signal ended the run before its last cell."""

    def __init__(self, number: int, is_at_once: bool) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.is_key = number == signal.SIGINT
        self.is_at_once = is_at_once


@dataclass
class _Task:
    """A group, with what happened to it so far."""

    group: Group
    failures: dict[int, Failure] = field(default_factory=dict)
    """Of cells that a worker died of, by place."""
    finished: set[int] = field(default_factory=set)
    """Places of the cells whose record is there."""
    num_told: int = 0
    num_left_out: int = 0
    """Requests that the display was told of, which another worker tells of again."""

    @property
    def places(self) -> range:
        return range(self.group.first_place, self.group.first_place + len(self.group.cells))


@dataclass
class _Worker:
    """A process and what it works on."""

    device: str | None
    process: SpawnProcess
    connection: Connection
    task: _Task
    at_stake: Sequence[int]
    heard_s: float
    """When the last event came."""
    label: str = ""
    """The cell under way, in words."""
    failure: Failure | None = None
    """Why it must end, if that is known."""


class Supervisor:
    """Starts workers for the groups of a plan and starts them again when they die."""

    def __init__(
        self, plan: RunPlan, progress: Progress, finished: list[str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """
        Args:
            plan: the cells, and how many workers run them.
            progress: shows the events of all workers.
            finished: the id of each finished cell is appended, also of a failed one.
            clock: seconds, for the limit of a stall.
        """
        resume = replace(plan.resume, own_sessions=secrets.token_hex(4))
        self._plan, self._progress, self._clock = replace(plan, resume=resume), progress, clock
        self._manifest = Manifest(plan, plan.folder, finished)
        self._tasks = [_Task(group) for group in groups_of(plan.cells)]
        self._devices = plan.workers.devices[: len(self._tasks)]
        self._workers: list[_Worker] = []
        self._context = multiprocessing.get_context("spawn")
        self._stopped_by: int | None = None
        self._is_at_once = False
        self._started_s = clock()
        self._written_s: float | None = None
        self._earlier_device_s = 0.0
        # a damaged one takes nothing but this number with it
        with suppress(ValueError):
            before = None if plan.resume.is_fresh else read_status(plan.folder)
            self._earlier_device_s = 0.0 if before is None else before.device_s

    def run(self) -> None:
        """Run every cell.

        Raises:
            SettingsError, ValueError: what a worker refused, before it ran anything or because nothing can be written.
            StoppedBySignal: by SIGINT, SIGTERM or SIGUSR1; what was finished before is kept.
        """
        self._progress.start(sum(len(task.group.cells) * task.group.num_turns for task in self._tasks))
        try:
            with stop_signals() as signals:
                for device in self._devices:
                    self._start(device)
                while self._workers:
                    self._wait(signals)
                    self._write_status(RUNNING)
            self._write_status(DONE if self._stopped_by is None else STOPPED)
        except Exception:
            self._write_status(STOPPED)
            raise
        finally:
            for worker in self._workers:
                worker.process.kill()
                worker.process.join()
        if self._stopped_by is not None:
            raise StoppedBySignal(self._stopped_by, self._is_at_once)

    def _start(self, device: str | None) -> None:
        """Start a worker with the next group, if there is one."""
        if not self._tasks or self._stopped_by is not None:
            return
        task = self._tasks.pop(0)
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=work, args=(theirs, self._plan, device))
        with blocked(signal.SIGINT):
            process.start()
        theirs.close()
        worker = _Worker(device, process, ours, task, task.places, self._clock())
        self._workers.append(worker)
        self._send(worker, (task.group, task.failures))

    def _wait(self, signals: socket.socket) -> None:
        """Take in the next events, and end workers from which nothing came for too long."""
        limit_s = self._plan.workers.stall_limit_s or None
        heard_s = min(worker.heard_s for worker in self._workers)
        timeout_s = STATUS_S if limit_s is None else min(STATUS_S, max(0.0, heard_s + limit_s - self._clock()))
        ready = wait([signals, *(worker.connection for worker in self._workers)], timeout_s)
        if signals in ready:
            self._stop(ord(signals.recv(1)))
        for worker in [item for item in self._workers if item.connection in ready]:
            worker.heard_s = self._clock()
            try:
                event = worker.connection.recv()
            except (EOFError, OSError):
                self._ended(worker)
            else:
                self._take(worker, *event)
        for worker in self._workers:
            if limit_s is not None and self._clock() - worker.heard_s >= limit_s and worker.failure is None:
                text = f"no request finished in {duration(limit_s)} (--stall-limit); its process was ended"
                worker.failure = Failure("StallError", text)
                worker.process.kill()

    def _take(self, worker: _Worker, name: str, *arguments: Any) -> None:
        """What an event of a worker changes."""
        task = worker.task
        if name == "at_stake":
            (worker.at_stake,) = arguments
        elif name == "finished":
            task.finished.add(arguments[0])
            self._manifest.add(*arguments)
        elif name == "lost":
            (worker.failure,) = arguments
        elif name == "refused":
            text, is_about_settings, trace = arguments
            error = (SettingsError if is_about_settings else ValueError)(text)
            error.add_note(trace)
            raise error
        elif name == "done":
            self._next(worker)
        else:
            task.num_told += arguments[0] if name == "advance" else 0
            task.num_left_out += arguments[0] if name == "leave_out" else 0
            worker.label = arguments[0] if name == "cell" else worker.label
            getattr(self._progress, name)(*arguments)

    def _next(self, worker: _Worker) -> None:
        """Give a worker the next group, or let it end."""
        if self._tasks and self._stopped_by is None:
            worker.task = self._tasks.pop(0)
            worker.at_stake = worker.task.places
            self._send(worker, (worker.task.group, worker.task.failures))
        else:
            self._workers.remove(worker)
            self._send(worker, None)
            worker.process.join(END_S)
            worker.process.kill()
            worker.process.join()

    def _send(self, worker: _Worker, message: Any) -> None:
        # if it died, the end of its events says so
        with suppress(OSError):
            worker.connection.send(message)

    def _ended(self, worker: _Worker) -> None:
        """A worker ended in the middle of a group: another goes on with what it did not fail at."""
        worker.process.join()
        self._workers.remove(worker)
        if self._stopped_by is not None:
            return
        task = worker.task
        failure = worker.failure or Failure("WorkerDiedError", _how(worker.process.exitcode))
        left = [place for place in task.places if place not in task.finished | task.failures.keys()]
        # it may have died between two cells; with nothing to blame it could die there again and again
        blamed = [place for place in worker.at_stake if place in left] or left
        task.failures |= dict.fromkeys(blamed, failure)
        self._progress.advance(-task.num_told)
        self._progress.leave_out(-task.num_left_out)
        task.num_told = task.num_left_out = 0
        if left:
            self._progress.note(f"a worker ended: {failure.reason}; another goes on")
            self._tasks.insert(0, task)
        self._start(worker.device)

    def _write_status(self, state: str) -> None:
        """Tell other shells how far the run is: now and then, and at its end; not before a cell is under way."""
        is_begun = self._written_s is not None or any(worker.label for worker in self._workers)
        is_early = state == RUNNING and self._written_s is not None and self._clock() - self._written_s < STATUS_S
        if is_early or not is_begun:
            return
        self._written_s = self._clock()
        status = RunStatus(
            state=state,
            num_cells=len(self._plan.cells),
            num_finished=len(self._manifest.finished),
            num_failed=len(self._manifest.failed),
            running=tuple(worker.label for worker in self._workers if worker.label),
            num_requests_left=self._progress.num_left,
            num_requests_done=self._progress.num_done,
            num_devices=len(self._devices),
            elapsed_s=self._clock() - self._started_s,
            earlier_device_s=self._earlier_device_s,
        )
        # records and checkpoints say it if nothing can be written
        with suppress(OSError):
            status.write(self._plan.folder)

    def _stop(self, number: int) -> None:
        """The first signal asks the workers to end, a second key ends them."""
        if self._stopped_by is None and number in STOP_SIGNALS:
            self._stopped_by = number
            again = "; Ctrl-C again stops at once" if number == signal.SIGINT else ""
            self._progress.note(f"stopping when the next request has finished{again}")
            for worker in self._workers:
                worker.process.terminate()
        elif number == signal.SIGINT:
            self._is_at_once = True
            for worker in self._workers:
                worker.process.kill()


def _how(exit_code: int | None) -> str:
    """How a process ended, in words."""
    if exit_code is None or exit_code >= 0:
        return f"the process that ran it ended with exit code {exit_code}"
    name = signal.Signals(-exit_code).name
    hint = "; memory may have run out: dmesg or the cluster's log tell" if name == "SIGKILL" else ""
    return f"the process that ran it was ended by {name}{hint}"
