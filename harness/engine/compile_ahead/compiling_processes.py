"""Variants of kernels compiled by several processes at once; what they compile lies in Triton's cache.

One process is started that imports torch and Triton and has no thread and no device. It forks itself for every variant.
It is none of multiprocessing's, which would run a script of the user's a second time.
One that dies takes its variant with it, and nothing else: who launches a kernel that is not in the cache compiles it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread
from typing import NamedTuple

from harness.engine.compile_ahead.variant import Variant, compile_variant

MAX_PROCESSES = 32
"""More would seldom have work: a cell launches some tens of kernels."""


class Compiled(NamedTuple):
    """What became of a variant."""

    kernel: str
    error: str | None
    """Why it was not compiled."""


class CompilingProcesses:
    """Compile what they are given, from the first one on; `results` ends them."""

    def __init__(self, target: int) -> None:
        """target: compute capability without the dot, such as 90."""
        self.num_processes = min(MAX_PROCESSES, len(os.sched_getaffinity(0)))
        """That compile at the same time, at most: no more than this process may use cores."""
        self.errors: list[str] = []
        """What went wrong with the processes themselves."""
        self._given: SimpleQueue[Variant | None] = SimpleQueue()
        results, self._their_results = os.pipe()
        self._results = Connection(results, writable=False)
        self._process: subprocess.Popen[bytes] | None = None
        # whoever gives a variant does not wait until a process takes it
        self._sender = Thread(target=self._send, args=(target,), daemon=True)
        self._sender.start()

    def add(self, variant: Variant) -> None:
        """Have a variant compiled, of a kernel that can be imported."""
        self._given.put(variant)

    def results(self, limit_s: float) -> Iterator[Compiled]:
        """What became of every variant, as they are done; one whose process died is missing.

        Args:
            limit_s: ends after so long, with an error among `errors`.
        """
        self._given.put(None)
        last_s = time.monotonic() + limit_s
        with self._results:
            while self._results.poll(max(0.0, last_s - time.monotonic())):
                try:
                    yield Compiled(*self._results.recv())
                except EOFError:
                    self._sender.join()
                    if self._process is not None:
                        self._process.wait()
                    return
        self.errors.append(f"not done after {limit_s:.0f} s")

    def _send(self, target: int) -> None:
        """Start the process, and hand variants over to it."""
        theirs, ours = os.pipe()
        program = (
            f"import {__name__} as here; here.serve({theirs}, {self._their_results}, {target}, {self.num_processes})"
        )
        # what is imported here is found there
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with Connection(ours, readable=False) as given:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", program],
                    pass_fds=(theirs, self._their_results),
                    env=environment,
                    stdin=subprocess.DEVNULL,
                )
                for number in (theirs, self._their_results):
                    os.close(number)
                while (variant := self._given.get()) is not None:
                    given.send(variant)
            except OSError as error:
                self.errors.append(f"no process that compiles: {type(error).__name__}: {error}")
                if self._process is None:
                    os.close(theirs)
                    os.close(self._their_results)


def serve(given_number: int, results_number: int, target: int, num_processes: int) -> None:
    """The body of the process that is started.

    Args:
        given_number: of the pipe that brings variants.
        results_number: of the pipe that takes what becomes of each.
        target: compute capability without the dot, such as 90.
        num_processes: that compile at the same time, at most.
    """
    given, results = Connection(given_number, writable=False), Connection(results_number, readable=False)
    num_running = 0
    while True:
        try:
            variant = given.recv()
        except EOFError:
            break
        # once here, and not in every child
        import_module(variant.module)
        if num_running == num_processes:
            os.wait()
            num_running -= 1
        if os.fork() == 0:
            _compile_and_exit(variant, results, target)
        num_running += 1
    results.close()
    for _ in range(num_running):
        os.wait()


def _compile_and_exit(variant: Variant, results: Connection, target: int) -> None:
    """The body of a child; does not return."""
    code, error = 1, None
    try:
        try:
            compile_variant(variant, target)
        except Exception as found:
            # so short that it is written in one piece beside what other children write
            error = f"{type(found).__name__}: {' '.join(str(found).split())}"[:400]
        results.send((variant.kernel, error))
        code = 0
    finally:
        os._exit(code)
