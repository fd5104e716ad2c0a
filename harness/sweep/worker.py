"""A process that runs groups of cells and reports what happens to the supervisor; torch is imported here.

It knows one device and does not know the other workers.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import secrets
import signal
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import FrameType

from harness.compose.run_plan import RunPlan
from harness.settings.schema import SettingsError
from harness.sweep.cpu_threads import choose_threads
from harness.sweep.failures import DeviceLostError
from harness.sweep.progress import Progress
from harness.sweep.run_cells import CellRunner, refuse_repeated


class Stopped(BaseException):
    """The supervisor wants this process to end."""


def work(connection: Connection, plan: RunPlan, device: str | None) -> None:
    """Run the groups that the supervisor sends until it sends none; the body of a worker process.

    Args:
        connection: brings (group, failures by place), or None to end; takes events, `(name, *arguments)`. The names
            are the methods of `Reports` that send, and `done`, `lost` and `refused`.
        plan: of the run.
        device: what CUDA_VISIBLE_DEVICES becomes; None leaves it as it is.
    """
    faulthandler.enable()
    threading.Thread(target=_end_with_the_supervisor, daemon=True).start()
    reports = Reports(connection)
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, reports.stop)
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device
    choose_threads(plan.cells)
    session = plan.resume.own_sessions + secrets.token_hex(2)
    runner = CellRunner(plan, plan.folder, reports, reports.finished, reports.at_stake, session=session)
    try:
        refuse_repeated(plan.cells)
        while (task := connection.recv()) is not None:
            runner.run_group(*task)
            connection.send(("done",))
    except Stopped:
        pass
    except DeviceLostError as error:
        connection.send(("lost", error.failure))
    except (ValueError, OSError) as error:
        # settings, a data set, or a file that cannot be written: the same for every cell
        connection.send(("refused", str(error), isinstance(error, SettingsError), traceback.format_exc()))


def _end_with_the_supervisor() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@dataclass
class Reports(Progress):
    """Sends what a display and the supervisor want to know, and raises `Stopped` between requests once asked to."""

    connection: Connection
    is_stopping: bool = False

    def stop(self, number: int, frame: FrameType | None) -> None:
        """The handler of signals."""
        self.is_stopping = True

    def at_stake(self, places: Sequence[int]) -> None:
        """These cells have failed if this process dies now."""
        self._send("at_stake", places)
        self._end_if_asked()

    def finished(self, place: int, cell_id: str, has_failed: bool) -> None:
        """The record of a cell is there."""
        self._send("finished", place, cell_id, has_failed)

    def cell(self, label: str, index: int, num_cells: int) -> None:
        self._send("cell", label, index, num_cells)

    def advance(self, num_requests: int = 1, num_tokens: int = 0) -> None:
        self._send("advance", num_requests, num_tokens)
        self._end_if_asked()

    def leave_out(self, num_requests: int) -> None:
        self._send("leave_out", num_requests)

    def note(self, text: str) -> None:
        self._send("note", text)

    def _send(self, *event: object) -> None:
        self.connection.send(event)

    def _end_if_asked(self) -> None:
        if self.is_stopping:
            raise Stopped
