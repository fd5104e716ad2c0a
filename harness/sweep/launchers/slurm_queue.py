"""Which jobs of this user SLURM has ended, asked once for all of them; knows not what they run."""

from __future__ import annotations

import os
import subprocess
import threading

ANSWER_S = 60.0
"""How long the controller may take to answer."""
_BEFORE_ITS_END = ("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "RESIZING")


class SlurmQueue:
    """What the controller said last."""

    def __init__(self) -> None:
        self._ended: frozenset[str] = frozenset()
        self._asked_for: set[str] = set()
        self._asking: threading.Thread | None = None

    def has_ended(self, job_id: str) -> bool:
        """Whether a job had ended when the controller was asked last; asks it anew beside what goes on here."""
        self._asked_for.add(job_id)
        if self._asking is None or not self._asking.is_alive():
            self._asking = threading.Thread(target=self.ask, daemon=True)
            self._asking.start()
        return job_id in self._ended

    def ask(self) -> None:
        """Ask for all jobs that were asked for; without an answer nothing is known of a job, nor that it has ended."""
        jobs = frozenset(self._asked_for)
        # of sacct a cluster may have none
        command = ["squeue", "--noheader", "--states=all", "--format=%i %T", f"--user={os.getuid()}"]
        # what a user has set for reading the queue would hide jobs
        plain = {name: value for name, value in os.environ.items() if not name.startswith("SQUEUE_")}
        try:
            found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=ANSWER_S, env=plain)
            states = dict(line.split() for line in found.stdout.splitlines() if line.strip())
        except (OSError, ValueError, subprocess.SubprocessError):
            return
        # one that is not listed was forgotten, some minutes after its end
        self._ended = frozenset(job for job in jobs if states.get(job) not in _BEFORE_ITS_END)
