"""Runs a plan in worker processes, so that what ends a process does not end the sweep; no torch here.

A worker gets one group of comparable cells after the other. Its events feed one progress display and one manifest. If
it dies, or nothing comes from it for too long, the cell that it worked on has failed, and a new worker goes on with the
rest of the group. Where workers may be lost through no fault of a cell, the cell is tried a second time. This module
does not know where workers run.
"""

from __future__ import annotations

import math
import secrets
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing.connection import wait
from typing import Any

from harness.config.schema import SettingsError
from harness.records.run_status import DONE, RUNNING, STOPPED
from harness.records.schema import Failure
from harness.runner.channel import error_told, failure_told
from harness.runner.finished_groups import tasks_left
from harness.runner.groups import groups_of
from harness.runner.manifest import Manifest
from harness.runner.plan.run_plan import RunPlan
from harness.runner.progress import Progress, duration
from harness.runner.status_file import StatusFile
from harness.runner.stop_signals import StopSignals
from harness.runner.supervised_worker import Places, SupervisedWorker
from harness.runner.task import Task

LOOK_S = 5.0
"""How often workers that have not begun are looked after."""


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
        self._tasks = [Task(index, group) for index, group in enumerate(groups_of(plan.cells))]
        self._launcher = self._plan.launcher.launcher(self._plan)
        self._workers: list[SupervisedWorker] = []
        self._has_begun = self._has_worked = False
        self._places = Places(self._launcher.num_workers)
        self._refused: list[int] = []
        """Places of workers that could run nothing, while none has run anything."""
        self._signals, self._is_stopping = StopSignals(), False
        self._status = StatusFile(plan, progress, self._manifest, clock)

    def run(self) -> None:
        """Run every cell.

        Raises:
            SettingsError, ValueError: why no worker can run anything, or begins, or that nothing can be written.
            StoppedBySignal: by SIGINT, SIGTERM or SIGUSR1; what was finished before is kept.
        """
        with self._signals.caught():
            try:
                every = self._tasks
                self._tasks = tasks_left(self._plan, every, self._manifest, self._progress.note)
                self._progress.start(sum(task.num_requests for task in every))
                self._progress.done_before(sum(task.num_before for task in every))
                self._progress.leave_out(sum(task.num_left_out for task in every))
                self._write_status(RUNNING)
                for place in range(min(self._launcher.num_workers, len(self._tasks))):
                    self._start(place)
                # one without a group has none left to run: it may be a job that its cluster has not begun yet
                while self._workers and (self._tasks or any(worker.task is not None for worker in self._workers)):
                    self._wait()
                    self._progress.tick()
                    self._write_status(RUNNING)
                self._write_end(STOPPED if self._is_stopping else DONE)
            except Exception:
                self._write_end(STOPPED)
                raise
            finally:
                self._close()

    def _close(self) -> None:
        """End all workers and the launcher; an error there becomes a note, so that it does not hide the run's own."""
        steps: list[Callable[[], None]] = [worker.process.kill for worker in self._workers]
        steps += [partial(worker.process.end, self._signals.hurry) for worker in self._workers]
        steps += [partial(self._launcher.close, self._signals.hurry)]
        for step in steps:
            try:
                step()
            except Exception as error:
                self._progress.note(f"while workers were ended: {type(error).__name__}: {error}")

    def _write_end(self, state: str) -> None:
        """Write how the run ended; one that stopped before it ran anything leaves the status of the session before."""
        if self._has_worked or state == DONE:
            self._write_status(state)
        else:
            self._status.withdraw()

    def _start(self, place: int) -> None:
        """Start a worker, if there is work for one more."""
        num_waiting = sum(worker.task is None for worker in self._workers)
        if len(self._tasks) <= num_waiting or self._is_stopping:
            return
        try:
            worker = SupervisedWorker(place, self._launcher.start(place), self._clock())
        except SettingsError as error:
            self._replace(place, error)
            return
        self._workers.append(worker)
        if worker.process.channel is not None:
            self._begin(worker)

    def _replace(self, place: int, error: ValueError) -> None:
        """A worker has not begun: start another; raises if none ever began, as with wrong settings, or none is left."""
        self._places.failed(place)
        other = self._places.best({worker.place for worker in self._workers})
        if not self._has_begun or (other is None and self._tasks and not self._workers):
            raise error
        self._progress.note(f"{error}; {'none is started in its place' if other is None else 'another is started'}")
        if other is not None:
            self._start(other)

    def _begin(self, worker: SupervisedWorker) -> None:
        self._has_begun = True
        worker.begun_s = worker.heard_s = self._clock()
        self._next(worker)

    def _wait(self) -> None:
        """Take in the next events, and end workers from which nothing came for too long."""
        heard = {worker.process.channel.fileno(): worker for worker in self._workers if worker.process.channel}
        limit_s = self._plan.workers.stall_limit_s or math.inf
        next_s = min((worker.heard_s + limit_s for worker in heard.values()), default=math.inf)
        timeout_s = min(LOOK_S, max(0.0, next_s - self._clock()))
        ready = wait([self._signals.fileno(), *self._launcher.doors, *heard], timeout_s)
        if self._signals.fileno() in ready:
            self._signals.take()
            self._stop()
        for process in self._launcher.begun() if {*self._launcher.doors} & {*ready} else ():
            worker = next((item for item in self._workers if item.process is process), None)
            if worker is not None:
                self._begin(worker)
            else:
                # a job that was given up, or that began after the run was stopped
                process.kill()
        for worker in [heard[item] for item in ready if isinstance(item, int) and item in heard]:
            self._hear(worker)
        for worker in list(self._workers):
            silent_s = self._clock() - worker.heard_s
            if worker.task is None and silent_s >= LOOK_S:
                worker.heard_s = self._clock()
                if worker.process.has_ended():
                    # a cluster may requeue the job
                    worker.process.kill()
                    self._remove(worker)
                    ending = worker.process.ending()
                    self._replace(worker.place, ValueError(f"expected that a worker begins, found its end: {ending}"))
            elif worker.task is not None and silent_s >= limit_s:
                text = f"no request finished in {duration(limit_s)} (--stall-limit); its process was ended"
                worker.failure = Failure("StallError", text)
                worker.process.kill()
                self._ended(worker)

    def _hear(self, worker: SupervisedWorker) -> None:
        worker.heard_s = self._clock()
        channel = worker.process.channel
        # it may have been ended meanwhile
        if channel is None or worker not in self._workers:
            return
        try:
            name, values = channel.receive()
        except (EOFError, OSError):
            self._ended(worker)
        else:
            self._take(worker, name, *values)

    def _take(self, worker: SupervisedWorker, name: str, *values: Any) -> None:
        """What an event of a worker changes."""
        task = worker.task
        assert task is not None, "it has begun"
        if name == "refused":
            self._refuse(worker, task, error_told(*values))
            return
        self._worked()
        if name == "at_stake":
            (worker.at_stake,) = values
        elif name == "finished":
            task.finished.add(values[0])
            self._manifest.add(*values)
        elif name == "lost":
            worker.failure = failure_told(*values)
        elif name == "unwritable":
            raise error_told(*values)
        elif name == "kept":
            worker.has_kept = True
            self._places.worked(worker.place)
            task.kept()
        elif name == "done":
            # turns that did not fit, or prompts that the worker could not read
            self._progress.leave_out(task.num_untold)
            self._next(worker)
        elif name == "stopped":
            self._remove(worker)
            failure = Failure("StoppedError", "its scheduler stopped the process that ran it before anything was kept")
            if not worker.has_kept:
                task.lose(worker.at_stake, failure, is_forgiven=True)
            self._leave_to_another(worker, "it was asked to stop")
        else:
            task.num_told += values[0] if name == "advance" else 0
            task.num_left_out += values[0] if name == "leave_out" else 0
            task.num_before += values[0] if name == "done_before" else 0
            worker.label = values[0] if name == "cell" else worker.label
            getattr(self._progress, name)(*values)

    def _refuse(self, worker: SupervisedWorker, task: Task, error: ValueError) -> None:
        """A worker can run nothing; raises unless the reason may be its host and there are others."""
        self._remove(worker)
        if not self._has_worked and not self._workers:
            raise error
        self._tasks.insert(0, task)
        if self._has_worked:
            self._replace(worker.place, error)
        else:
            self._progress.note(f"{error}; the other workers go on")
            self._refused.append(worker.place)

    def _worked(self) -> None:
        """A worker runs something: those that could run nothing were on bad hosts, and are replaced."""
        self._has_worked = True
        while self._refused:
            place = self._refused.pop()
            self._places.failed(place)
            self._start(place)

    def _next(self, worker: SupervisedWorker) -> None:
        """Give a worker the next group, or let it end."""
        if self._tasks and not self._is_stopping:
            task = worker.task = self._tasks.pop(0)
            worker.label = ""
            worker.at_stake = task.places
            worker.send("run", *task.hand_over())
        else:
            worker.send("end")
            self._remove(worker)

    def _remove(self, worker: SupervisedWorker) -> None:
        """A worker has ended, or is about to."""
        self._workers.remove(worker)
        self._status.worker_ended(worker)
        worker.process.end(self._signals.hurry)

    def _ended(self, worker: SupervisedWorker) -> None:
        """A worker ended in the middle of a group: another goes on with what it did not fail at."""
        task = worker.task
        assert task is not None, "it has begun"
        failure = worker.failure or Failure("WorkerDiedError", worker.process.ending())
        worker.process.kill()
        self._remove(worker)
        task.lose(worker.at_stake, failure, self._launcher.forgives and worker.failure is None)
        self._leave_to_another(worker, failure.reason)

    def _leave_to_another(self, worker: SupervisedWorker, reason: str) -> None:
        """Put what is left of a worker's group before all others, and start another worker."""
        task = worker.task
        if self._is_stopping or task is None:
            return
        if not task.is_done:
            self._progress.advance(-task.num_told)
            self._progress.leave_out(-task.num_left_out)
            self._progress.done_before(-task.num_before)
            task.num_told = task.num_left_out = task.num_before = 0
            self._progress.note(f"a worker ended: {reason}; another goes on")
            self._tasks.insert(0, task)
        self._start(worker.place)

    def _write_status(self, state: str) -> None:
        self._status.write(state, self._workers, self._launcher.devices_per_worker)

    def _stop(self) -> None:
        """The first signal asks the workers to end, a second key ends them."""
        if self._signals.first is not None and not self._is_stopping:
            self._is_stopping = True
            again = "; Ctrl-C again stops at once" if self._signals.first == signal.SIGINT else ""
            plays = any(worker.label for worker in self._workers)
            self._progress.note(f"stopping {'after the round under way' if plays else 'while models load'}{again}")
            for worker in list(self._workers):
                worker.process.stop()
                if worker.task is None:
                    self._remove(worker)
        if self._signals.is_at_once:
            for worker in list(self._workers):
                worker.process.kill()
                self._remove(worker)
