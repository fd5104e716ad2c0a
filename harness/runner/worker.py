"""A process that runs groups of cells and reports what happens to the supervisor; torch is imported here.

It knows one device and knows neither the other workers nor what has started it.
"""

from __future__ import annotations

import faulthandler
import os
import secrets
import signal
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from types import FrameType
from typing import Any

from harness.config.schema import SettingsError
from harness.records.files import UnwritableError
from harness.runner.channel import Channel
from harness.runner.cpu_threads import choose_threads
from harness.runner.failures import DeviceLostError, failure_of
from harness.runner.plan.run_plan import RunPlan
from harness.runner.progress import Progress
from harness.runner.refuse_cells import refuse_repeated, refuse_unreadable
from harness.runner.run_cells import CellRunner
from harness.runner.task import failure_message, told_failures
from harness.runner.turns import groups_of

SCHEDULER_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""What schedulers send before they end a process; the last is submitit's."""


class Stopped(BaseException):
    """The supervisor or a signal wants this process to end."""


def work(channel: Channel, plan: RunPlan, device: str | None) -> None:
    """Run the groups that the supervisor sends until it sends `end`; the body of a worker process.

    Args:
        channel: brings `run` with a group and what other workers have left of it (`Task.hand_over`), `stop` and `end`;
            takes events. Their names are the methods of `Reports` that send, and `done`, `stopped`, `lost`,
            `refused` (no group can be run here) and `unwritable`.
        plan: of the run.
        device: what CUDA_VISIBLE_DEVICES becomes; None leaves it as it is.
    """
    faulthandler.enable()
    reports = Reports(channel)
    try:
        for number in SCHEDULER_SIGNALS:
            signal.signal(number, reports.stop)
        tasks: SimpleQueue[list[Any] | None] = SimpleQueue()
        threading.Thread(target=_listen, args=(channel, tasks, reports), daemon=True).start()
        if device is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = device
        choose_threads(plan.cells)
        session = plan.resume.own_sessions + secrets.token_hex(4)
        runner = CellRunner(plan, plan.folder, reports, reports.finished, reports.at_stake, session=session)
        groups = groups_of(plan.cells)
        try:
            refuse_repeated(plan.cells)
            refuse_unreadable(groups)
        except (ValueError, OSError) as error:
            channel.send("refused", str(error), traceback.format_exc(), isinstance(error, SettingsError))
            return
        while (task := tasks.get()) is not None:
            index, failures, finished = task
            reports.is_loading = True
            runner.run_group(groups[index], told_failures(failures), finished)
            channel.send("done")
        if reports.is_stopping:
            reports.stopped()
    except Stopped:
        reports.stopped()
    except DeviceLostError as error:
        channel.send("lost", failure_message(error.failure))
    except UnwritableError as error:
        channel.send("unwritable", str(error), traceback.format_exc())
    except Exception as error:
        # beside a cell, where its record should have been written: the cell under way has failed
        channel.send("lost", failure_message(failure_of(error)))


def _listen(channel: Channel, tasks: SimpleQueue[list[Any] | None], reports: Reports) -> None:
    """Take in messages; without a supervisor the process ends, at once unless it is ending already."""
    while True:
        try:
            name, values = channel.receive()
        except (EOFError, OSError):
            if reports.has_stopped:
                return
            os._exit(1)
        if name == "run":
            tasks.put(values)
            continue
        if name == "stop":
            # wherever that thread is
            signal.pthread_kill(int(threading.main_thread().ident or 0), signal.SIGTERM)
        tasks.put(None)
        if name == "end":
            return


@dataclass
class Reports(Progress):
    """Sends what a display and the supervisor want to know, and raises `Stopped` between rounds once asked to."""

    channel: Channel
    is_loading: bool = True
    """Whether no round of the turn under way has ended, so that there is nothing to be kept."""
    is_stopping: bool = False
    has_stopped: bool = False
    """Whether only servers are left to be ended."""

    def stop(self, number: int, frame: FrameType | None) -> None:
        """The handler of signals."""
        is_first, self.is_stopping = not self.is_stopping, True
        if is_first and self.is_loading:
            raise Stopped

    def stopped(self) -> None:
        """The process is about to end; the supervisor closes the channel once it has heard so."""
        self.has_stopped = True
        self.channel.send("stopped")

    def at_stake(self, places: Sequence[int]) -> None:
        """These cells have failed if this process dies now."""
        self._send("at_stake", places)
        self._end_if_asked()

    def finished(self, place: int, cell_id: str, has_failed: bool) -> None:
        """The record of a cell is there."""
        self._send("finished", place, cell_id, has_failed)

    def cell(self, label: str, index: int, num_cells: int) -> None:
        self.is_loading = True
        self._send("cell", label, index, num_cells)

    def advance(self, num_requests: int = 1, num_tokens: int = 0) -> None:
        self._send("advance", num_requests, num_tokens)
        self.round_ended()

    def kept(self) -> None:
        self._send("kept")

    def done_before(self, num_requests: int) -> None:
        self._send("done_before", num_requests)

    def leave_out(self, num_requests: int) -> None:
        self._send("leave_out", num_requests)

    def note(self, text: str) -> None:
        self._send("note", text)

    def ready(self, text: str) -> None:
        self._send("ready", text)

    def _send(self, name: str, *values: Any) -> None:
        try:
            self.channel.send(name, *values)
        except OSError as error:
            # no fault of the cell that is under way
            raise Stopped from error

    def round_ended(self) -> None:
        self.is_loading = False
        self._end_if_asked()

    def _end_if_asked(self) -> None:
        if self.is_stopping:
            raise Stopped
