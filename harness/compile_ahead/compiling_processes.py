"""Variants of kernels compiled by several processes at once; what they compile lies in Triton's cache.

One process is started that imports torch and Triton and has no thread and no device. It forks itself for every variant.
One that dies takes its variant with it, and nothing else: who launches a kernel that is not in the cache compiles it.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from importlib import import_module
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread
from typing import NamedTuple

from harness.compile_ahead.variant import Variant, compile_variant

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
        self._results, self._their_results = multiprocessing.get_context("spawn").Pipe(duplex=False)
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
                    return
        self.errors.append(f"not done after {limit_s:.0f} s")

    def _send(self, target: int) -> None:
        """Start the process, and hand variants over to it."""
        context = multiprocessing.get_context("spawn")
        theirs, ours = context.Pipe(duplex=False)
        arguments = theirs, self._their_results, target, self.num_processes
        process = context.Process(target=_serve, args=arguments, daemon=True)
        try:
            process.start()
            theirs.close()
            self._their_results.close()
            while (variant := self._given.get()) is not None:
                ours.send(variant)
        except OSError as error:
            self.errors.append(f"a process that compiles did not start, or ended: {type(error).__name__}: {error}")
            self._their_results.close()
        ours.close()


def _serve(given: Connection, results: Connection, target: int, num_processes: int) -> None:
    """The body of the process that is started."""
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
