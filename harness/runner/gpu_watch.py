"""What a GPU does beside a block of requests, as NVML tells it: clocks, what holds them down, other processes.

A sample is taken before the block and after it, while its clock stands, and one every SAMPLE_S. A thread takes them: it
calls NVML, not CUDA, without the interpreter's lock, and who wants a sample waits for it for a limited time. What NVML
refuses is left out and named. This module does not know what runs.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import import_module
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from harness.records.gpu_samples import GpuSamples
from harness.runner.own_processes import num_with_a_gpu_open, own_processes

SAMPLE_S = 1.0
END_S = 5.0
"""How long the end of the thread is waited for."""
ANSWER_S = 1.0
"""How long a sample is waited for."""
_IDLE = "gpu_idle"
_REASONS = {
    _IDLE: 0x1,
    "application_clocks": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
    "display_clock": 0x100,
}
"""Bits of nvmlDeviceGetCurrentClocksThrottleReasons, which newer versions also call EventReasons."""


class _Sample(NamedTuple):
    """A GPU at one moment; None for what NVML does not tell."""

    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    reasons: tuple[str, ...] | None
    num_other_processes: int | None
    num_foreign_processes: int | None


class Gpu:
    """A GPU on which this process has a CUDA context, as NVML knows it."""

    def __init__(self, uuid: str, nvml: Any = None) -> None:
        """
        Args:
            uuid: as CUDA gives it, without a prefix; of a MIG instance its GPU is watched.
            nvml: a module like pynvml; None imports that.
        """
        self.unknown: dict[str, str] = {}
        """What could not be found out when it was last asked for -> why."""
        self._nvml, self._uuid = nvml, uuid
        self._foreign: tuple[frozenset[int], int] = frozenset(), 0
        """Of the processes listed last, and how many of them are none of this run's."""

    @cached_property
    def _handle(self) -> Any:
        """Found with the first sample; None where there is none."""
        return self._asked("nvml", lambda: self._found(self._uuid))

    def sample(self) -> _Sample | None:
        """The GPU now; None where there is no NVML for it."""
        handle = self._handle
        if handle is None:
            return None
        # imported with the handle
        nvml = self._nvml
        bits = self._asked("clock_reasons", lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        listed = self._asked("num_other_processes", self._listed)
        return _Sample(
            self._asked("sm_clock_mhz", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            self._asked("memory_clock_mhz", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
            None if bits is None else tuple(name for name, bit in _REASONS.items() if bits & bit),
            None if listed is None else len(listed) - 1,
            None if listed is None else self._asked("num_foreign_processes", lambda: self._num_foreign(listed)),
        )

    def _found(self, uuid: str) -> Any:
        if self._nvml is None:
            self._nvml = import_module("pynvml")
        nvml = self._nvml
        nvml.nvmlInit()
        try:
            return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        except nvml.NVMLError:
            part = nvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")
            return nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part)

    def _listed(self) -> frozenset[int]:
        """The processes that have it open for computing, by the driver's numbers."""
        listed = frozenset(item.pid for item in self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle))
        if not listed:
            raise ValueError("the driver lists no process, not even this one")
        return listed

    def _num_foreign(self, listed: frozenset[int]) -> int:
        """How many of them are none of this run's, at least.

        A container may see numbers of the host's: this process is not among them then, and as many of the others may be
        of this run as have a GPU open.
        """
        if len(listed) > 1 and listed != self._foreign[0]:
            own = own_processes()
            num_own = len(listed & own) if os.getpid() in listed else 1 + num_with_a_gpu_open(own - {os.getpid()})
            self._foreign = listed, max(0, len(listed) - num_own)
        return self._foreign[1] if len(listed) > 1 else 0

    def _asked(self, what: str, ask: Callable[[], Any]) -> Any:
        """An answer of NVML; None, and why, where there is none."""
        try:
            answer = ask()
            self.unknown.pop(what, None)
            return answer
        except Exception as error:
            # a driver's refusal, an older driver or binding: no reason to lose a cell
            self.unknown[what] = f"{type(error).__name__}: {error}"
            return None


@dataclass
class _Range:
    """Of numbers that come one by one; None as long as none is known."""

    low: int | None = None
    high: int | None = None
    total: int = 0
    num_known: int = 0

    def add(self, value: int | None) -> None:
        if value is not None:
            self.low = value if self.low is None else min(self.low, value)
            self.high = value if self.high is None else max(self.high, value)
            self.total, self.num_known = self.total + value, self.num_known + 1

    @property
    def mean(self) -> float | None:
        return self.total / self.num_known if self.num_known else None


class GpuWatch:
    """What was seen of a GPU so far."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu, self._lock = gpu, threading.Lock()
        self._num_samples = self._num_busy = 0
        self._sm_clock_mhz, self._memory_clock_mhz = _Range(), _Range()
        self._num_others, self._num_foreign = _Range(), _Range()
        self._reasons: Counter[str] = Counter()

    def take(self) -> None:
        """Take a sample."""
        sample = self._gpu.sample()
        if sample is None:
            return
        with self._lock:
            self._num_samples += 1
            self._num_others.add(sample.num_other_processes)
            self._num_foreign.add(sample.num_foreign_processes)
            if sample.reasons is None or _IDLE in sample.reasons:
                return
            self._num_busy += 1
            self._reasons.update(sample.reasons)
            self._sm_clock_mhz.add(sample.sm_clock_mhz)
            self._memory_clock_mhz.add(sample.memory_clock_mhz)

    def samples(self) -> GpuSamples:
        """All samples."""
        with self._lock:
            return GpuSamples(
                num_samples=self._num_samples,
                num_busy_samples=self._num_busy,
                min_sm_clock_mhz=self._sm_clock_mhz.low,
                mean_sm_clock_mhz=self._sm_clock_mhz.mean,
                max_sm_clock_mhz=self._sm_clock_mhz.high,
                min_memory_clock_mhz=self._memory_clock_mhz.low,
                clock_reasons=dict(self._reasons),
                num_other_processes=self._num_others.high,
                num_foreign_processes=self._num_foreign.high,
                unknown=self._gpu.unknown.copy(),
            )


class Watching:
    """A thread that takes samples: the driver may take long to answer, which must hold up nothing else."""

    def __init__(self, gpu: Gpu, every_s: float) -> None:
        self._watch, self._every_s = GpuWatch(gpu), every_s
        self._wanted: SimpleQueue[threading.Event | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def take(self) -> bool:
        """Have a sample taken now, and wait for it, for `ANSWER_S` at most; whether the driver has answered."""
        taken = threading.Event()
        self._wanted.put(taken)
        return taken.wait(ANSWER_S)

    def samples(self) -> GpuSamples:
        """All samples, one of now among them if the driver answers; it is named if it does not."""
        has_answered = self.take()
        samples = self._watch.samples()
        if has_answered:
            return samples
        return replace(samples, unknown={**samples.unknown, "nvml": f"no answer within {ANSWER_S:g} s"})

    def end(self) -> None:
        """Take no more."""
        self._wanted.put(None)
        self._thread.join(END_S)

    def _run(self) -> None:
        while True:
            taken = None
            try:
                taken = self._wanted.get(timeout=self._every_s)
                if taken is None:
                    return
            except Empty:
                pass
            self._watch.take()
            if taken is not None:
                taken.set()


@contextmanager
def watched(gpu: Gpu | None, every_s: float = SAMPLE_S) -> Iterator[Watching | None]:
    """Watch a GPU for the duration of a block; None watches nothing."""
    if gpu is None:
        yield None
        return
    watching = Watching(gpu, every_s)
    watching.take()
    try:
        yield watching
    finally:
        watching.end()


def own_gpu() -> Gpu | None:
    """The GPU that this process computes on, of several ranks that of rank 0; None if it has used none so far."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return _gpu(str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid))


@cache
def _gpu(uuid: str) -> Gpu:
    return Gpu(uuid)
