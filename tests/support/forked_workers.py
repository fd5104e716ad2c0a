"""Processes that tests start through multiprocessing come from one that has imported torch and the harness already.

A sweep and a certification start workers with `spawn`, and importing torch takes longer than most runs of a test. Here
a server that has imported it forks them: they too begin without the threads, pipes and changed modules of the test.
"""

import multiprocessing
import os
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess

IMPORTED = ("harness.runner.worker", "harness.backends.local.local", "harness.checks.certification.workers")


class ForkedProcess(ForkServerProcess):
    """A worker with the environment variables that its parent has when it starts it."""

    def __init__(self, *arguments: object, **named: object) -> None:
        super().__init__(*arguments, **named)
        self._environment = dict(os.environ)

    def run(self) -> None:
        os.environ.clear()
        os.environ.update(self._environment)
        super().run()


class ForkContext(ForkServerContext):
    Process = ForkedProcess


def fork_workers() -> None:
    """From now on `spawn` is the server's fork."""
    context, others = ForkContext(), multiprocessing.get_context
    context.set_forkserver_preload(list(IMPORTED))
    multiprocessing.get_context = lambda method=None: context if method == "spawn" else others(method)


def end_server() -> None:
    """Wait for the server, so that its CPU time and that of its workers counts as that of the tests."""
    forkserver._forkserver._stop()
