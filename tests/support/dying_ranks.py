"""Backends on several ranks whose processes are killed on the way, and which note the processes that they had."""

import multiprocessing
import os
import signal
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path

from harness.backends.local.local import LocalBackend
from harness.config.backend import Local

NOTED_IN = "RANKS_NOTED_IN"
"""Variable of the environment: the file that gets a process id a line."""


@dataclass(frozen=True)
class OnDyingRanks(Local):
    runs = "tests.support.dying_ranks:KillsRanks"


class KillsRanks(LocalBackend):
    """In the baseline the other rank is killed after a round; in other cells this process."""

    def generate(self, conversations, on_request=None, start_s=0.0, keep=None, on_round=None):
        def ended_round():
            ranks = multiprocessing.active_children()
            with Path(os.environ[NOTED_IN]).open("a") as noted:
                noted.writelines(f"{rank.pid}\n" for rank in ranks)
            if self.cell.is_baseline:
                ranks[0].kill()
                wait([ranks[0].sentinel])
            else:
                os.kill(os.getpid(), signal.SIGKILL)

        return super().generate(conversations, on_request, start_s, keep, ended_round)
