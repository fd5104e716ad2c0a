"""The kernels that some calls are about to launch, compiled beside this process from the moment they are known."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from triton import knobs

from harness.engine.compile_ahead.compiling_processes import CompilingProcesses
from harness.engine.compile_ahead.known_calls import known, remember
from harness.engine.compile_ahead.variant import Variant, compiled_key, launched, recorded

LIMIT_S = 600.0
"""After so long the kernels that are still missing are compiled where they are launched."""
NUM_TRIED = 4
"""Calls after which, if Triton's cache holds all their kernels, it is taken to hold those of the others too."""


class Compilation:
    """Finds out what calls launch, has processes compile what Triton's cache lacks, and counts what is compiled later.

    A kernel that was not found, or whose process died, is compiled where it is launched: results are the same.
    Calls that an earlier process has launched are not run: the cache holds their kernels.
    """

    def __init__(self, calls: Mapping[str, Callable[[], None]], target: int) -> None:
        """
        Args:
            calls: launch kernels on tensors of the meta device, with the shapes, types and layouts of later launches;
                by everything that these follow from, beside code and libraries.
            target: compute capability of the GPU without the dot, such as 90.
        """
        self._began, self._seconds = time.perf_counter(), 0.0
        self._target = target
        self._processes: CompilingProcesses | None = None
        self._errors: list[str] = []
        self._num_missing = self._num_compiled = self._num_processes = 0
        notes = {name: known(name, target) for name in calls}
        self._kept = set[str]().union(*(found or () for found in notes.values()))
        """Keys of kernels that the cache holds."""
        self._without_note = [name for name, found in notes.items() if found is None]
        for num_tried, name in enumerate(self._without_note):
            if num_tried == NUM_TRIED and not self._num_missing:
                break
            missing = self._missing(calls[name])
            # those with many arguments take longest
            for variant in sorted(missing, key=lambda variant: -len(variant.signature)):
                self._processes = self._processes or CompilingProcesses(target)
                self._processes.add(variant)
                self._num_processes = self._processes.num_processes

    def _missing(self, call: Callable[[], None]) -> list[Variant]:
        """What a call launches and Triton's cache lacks."""
        with recorded(self._target) as found:
            try:
                call()
            except Exception as error:
                # of any library that has no such operation on the meta device
                self._errors.append(f"some kernels of a cell are not known: {type(error).__name__}: {error}")
        keys = [compiled_key(variant, self._target) for variant in found]
        self._kept |= {key for key in keys if key is not None}
        missing = [variant for variant, key in zip(found, keys, strict=True) if key is None]
        self._num_missing += len(missing)
        return missing

    def wait(self) -> None:
        """Wait until the processes are done."""
        if self._processes is not None:
            self._wait_for(self._processes)
        self._processes = None

    def _wait_for(self, processes: CompilingProcesses) -> None:
        for each in processes.results(LIMIT_S):
            self._num_compiled += each.error is None
            if each.error is not None:
                self._errors.append(f"{each.kernel}: {each.error}")
        self._errors += processes.errors
        self._seconds = time.perf_counter() - self._began

    @contextmanager
    def launching(self, call: str) -> Iterator[list[float]]:
        """Seconds of each kernel that is compiled inside, where it is launched; the list grows meanwhile.

        Args:
            call: that is launched inside. From then on the cache holds its kernels, so that a later process need not
                run it; this one may not have tried it, or not have found out what it launches.
        """
        found: list[float] = []

        def count(*, times: Any, cache_hit: bool, **_: Any) -> None:
            if not cache_hit:
                found.append(times.total / 1e6)

        before, knobs.compilation.listener = knobs.compilation.listener, count
        try:
            with launched() as kernels:
                yield found
        finally:
            knobs.compilation.listener = before
        if call in self._without_note:
            self._without_note.remove(call)
            remember(call, self._target, kernels)

    @property
    def summary(self) -> str:
        """What was compiled and what was there, and how long it took from the first call on."""
        parts = [f"{len(self._kept)} kernels were compiled before"] if self._kept else []
        if self._num_missing:
            compiled = f"{self._num_compiled} of {self._num_missing}"
            parts.append(f"{compiled} kernels compiled in {self._seconds:.1f} s by {self._num_processes} processes")
        errors = f" ({'; '.join(dict.fromkeys(self._errors))})" if self._errors else ""
        return ", ".join(parts) + errors
