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
from queue import SimpleQueue
from typing import Any

from harness.config.schema import SettingsError
from harness.records.files import UnwritableError
from harness.runner.channel import Channel, Reports, Stopped, failure_message, told_failures
from harness.runner.cpu_threads import choose_threads
from harness.runner.failures import DeviceLostError, failure_of
from harness.runner.plan.run_plan import RunPlan
from harness.runner.refuse_cells import refuse_repeated, refuse_unreadable
from harness.runner.run_cells import CellRunner

SCHEDULER_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""What schedulers send before they end a process; the last is submitit's."""


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
        runner = CellRunner(plan, plan.folder, reports, reports.finished, session=session)
        try:
            refuse_repeated(plan.cells)
            refuse_unreadable(runner.groups)
        except (ValueError, OSError) as error:
            channel.send("refused", str(error), traceback.format_exc(), isinstance(error, SettingsError))
            return
        while (task := tasks.get()) is not None:
            index, failures, finished = task
            reports.is_loading = True
            runner.run_group(runner.groups[index], told_failures(failures), finished)
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
