"""Workers as processes of this host, one for each of its devices."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection

from harness.runner.channel import Channel
from harness.runner.launchers.launcher import WorkerProcess, await_end
from harness.runner.plan.run_plan import RunPlan
from harness.runner.stop_signals import blocked
from harness.runner.worker import work


class LocalProcess:
    """A child of the supervisor."""

    def __init__(self, plan: RunPlan, device: str | None) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self.channel = Channel(ours)
        self._process = context.Process(target=_work, args=(theirs, plan, device))
        # Python's first start of a process would begin this one, which lets SIGINT through again.
        resource_tracker.ensure_running()
        with blocked(signal.SIGINT):
            self._process.start()
        theirs.close()

    def stop(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def end(self, hurry: Callable[[], bool]) -> None:
        await_end(self._has_ended_within, hurry)
        self._process.kill()
        self._process.join()

    def _has_ended_within(self, limit_s: float) -> bool:
        self._process.join(limit_s)
        return self.has_ended()

    def has_ended(self) -> bool:
        return self._process.exitcode is not None

    def ending(self) -> str:
        self._process.join()
        code = self._process.exitcode
        if code is None or code >= 0:
            return f"the process that ran it ended with exit code {code}"
        name = signal.Signals(-code).name
        hint = "; memory may have run out: dmesg or the cluster's log tell" if name == "SIGKILL" else ""
        return f"the process that ran it was ended by {name}{hint}"


class LocalLauncher:
    """Starts workers on this host."""

    devices_per_worker = 1
    forgives = False
    doors: Sequence[int] = ()

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan
        self.num_workers = len(plan.workers.devices)

    def start(self, place: int) -> WorkerProcess:
        return LocalProcess(self._plan, self._plan.workers.devices[place])

    def begun(self) -> tuple[()]:
        return ()

    def close(self, hurry: Callable[[], bool]) -> None:
        pass


def _work(connection: Connection, plan: RunPlan, device: str | None) -> None:
    work(Channel(connection), plan, device)
