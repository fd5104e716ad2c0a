"""Asks SLURM which jobs of a run have ended, and cancels jobs; does not know what they run.

Threads of their own do so, once for all jobs, so that a controller that does not answer holds up nothing.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from functools import partial

from harness.config.cli.command_line import say
from harness.runner.launchers.launcher import await_end

ANSWER_S = 60.0
"""How long the controller may take to answer."""
AGAIN_S = 10.0
"""Time between two attempts to cancel a job."""
_BEFORE_ITS_END = ("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "RESIZING")


class SlurmQueue:
    """The controller's last answer, and the jobs to cancel."""

    def __init__(self) -> None:
        self._ended: frozenset[str] = frozenset()
        self._asked_for: set[str] = set()
        self._unwanted: set[str] = set()
        """Jobs to cancel that the controller has not accepted yet."""
        self._asking: threading.Thread | None = None
        self._cancelling: threading.Thread | None = None
        self._lock, self._is_closed = threading.Lock(), threading.Event()

    def has_ended(self, job_id: str) -> bool:
        """Whether a job had ended when the controller answered last; asks again in a thread."""
        self._asked_for.add(job_id)
        if self._asking is None or not self._asking.is_alive():
            self._asking = _started(self.ask)
        return job_id in self._ended

    def cancel(self, job_id: str) -> None:
        """Cancel a job that runs or waits, in a thread."""
        with self._lock:
            self._unwanted.add(job_id)
            if self._cancelling is None:
                self._cancelling = _started(self._cancel_all)

    def close(self, hurry: Callable[[], bool]) -> None:
        """Wait until jobs are cancelled, unless in a hurry; names those that may still run or wait."""
        self._is_closed.set()
        cancelling = self._cancelling
        if cancelling is not None:
            await_end(partial(_has_ended_within, cancelling), hurry)
        if self._unwanted:
            jobs = " ".join(sorted(self._unwanted))
            say(f"SLURM did not cancel jobs that are not needed; cancel them with: scancel {jobs}")

    def ask(self) -> None:
        """Ask for the states of all jobs; without an answer no job counts as ended."""
        jobs = frozenset(self._asked_for)
        # of sacct a cluster may have none
        found = _answer("squeue", "--noheader", "--states=all", "--format=%i %T", f"--user={os.getuid()}")
        if found is None:
            return
        try:
            states = dict(line.split() for line in found.splitlines() if line.strip())
        except ValueError:
            return
        # one that is not listed was forgotten, some minutes after its end
        self._ended = frozenset(job for job in jobs if states.get(job) not in _BEFORE_ITS_END)

    def _cancel_all(self) -> None:
        """Cancel all unwanted jobs; tries again until the controller accepts, and once more after `close`."""
        while True:
            with self._lock:
                jobs = frozenset(self._unwanted)
                if not jobs:
                    self._cancelling = None
                    return
            is_last = self._is_closed.is_set()
            if _answer("scancel", "--quiet", *sorted(jobs)) is None:
                self._asked_for |= jobs
                self.ask()
                jobs &= self._ended
            with self._lock:
                self._unwanted -= jobs
            if not jobs:
                if is_last:
                    return
                self._is_closed.wait(AGAIN_S)


def _has_ended_within(thread: threading.Thread, limit_s: float) -> bool:
    thread.join(limit_s)
    return not thread.is_alive()


def _started(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def _answer(*command: str) -> str | None:
    """What a command of SLURM prints; None where it fails."""
    # what a user has set for reading the queue would hide jobs
    plain = {name: value for name, value in os.environ.items() if not name.startswith("SQUEUE_")}
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=ANSWER_S, env=plain).stdout
    except (OSError, subprocess.SubprocessError):
        return None
