"""Compile Triton kernels ahead of time, without a GPU, and read what they ask of one: registers, memory, spills.

The launchers themselves are called, on tensors of the CPU, so that what is compiled is what they launch: the same
constants, argument types, alignments and options. Only the last step is left out: a launch compiles and does not run.
What ptxas has to say about a kernel is its own report, of the very compilation.
This module does not know the kernels of the project.
"""

from __future__ import annotations

import importlib
import io
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

Launch = tuple[str, Callable[[], Any]]
"""What a launch is called in the result, and a function that launches kernels on tensors of the CPU."""
WARP_SIZE = 32
SHARED_BYTES = {80: 163 * 1024, 89: 99 * 1024, 90: 227 * 1024, 100: 227 * 1024, 120: 99 * 1024}
"""Of a program at most, by target (CUDA C++ Programming Guide, table of compute capabilities)."""
_REGISTERS = re.compile(r"Used (\d+) registers")
_BARRIER = re.compile(r"\b(?:bar|barrier)\.sync")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


class CompiledVariant(NamedTuple):
    """One variant of a kernel on one target."""

    target: int
    """Compute capability without the dot, such as 90."""
    kernel: str
    launched_by: str
    """The first launch that needed it."""
    num_warps: int
    num_registers: int
    """Of a thread."""
    shared_bytes: int
    """Of a program."""
    stack_bytes: int
    """Of a thread, as are the spills."""
    spill_store_bytes: int
    spill_load_bytes: int
    num_barriers: int
    """Places in its code at which the warps of a program wait for one another."""

    @property
    def spills(self) -> bool:
        return self.spill_store_bytes > 0 or self.spill_load_bytes > 0


class CompileOnlyDriver(DriverBase):
    """Stands for a GPU that is not there; every target is a device of its own, so that each gets its own kernels."""

    def __init__(self, target: int) -> None:
        super().__init__()
        self.target = target

    @classmethod
    def is_active(cls) -> bool:
        return True

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.target, WARP_SIZE)

    def get_current_device(self) -> int:
        return self.target

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def map_python_to_cpp_type(self, ty: str) -> str:
        raise NotImplementedError(f"nothing is launched, so no launcher passes a {ty}")

    def get_benchmarker(self) -> Any:
        raise NotImplementedError("nothing is launched, so nothing is timed")


@dataclass
class _Recorder:
    """Takes the place of JITFunction.run."""

    run: Callable[..., Any]
    target: int
    variants: list[CompiledVariant]
    launched_by: str = ""

    def compile(self, function: JITFunction, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        """Compile what a launch would run; its variant is recorded unless an earlier launch has compiled it."""
        known = {id(kernel) for kernel in _compiled(function, self.target)}
        log = io.StringIO()
        with redirect_stdout(log):
            kernel = self.run(function, *arguments, **{**options, "warmup": True})
        if id(kernel) not in known:
            self.variants.append(self._variant(function, kernel, log.getvalue()))
        return kernel

    def _variant(self, function: JITFunction, kernel: Any, log: str) -> CompiledVariant:
        name, registers, stacks = function.fn.__name__, _REGISTERS.findall(log), _STACK.findall(log)
        if not registers or not stacks:
            raise RuntimeError(
                f"{name} for sm_{self.target}: expected the report of ptxas with registers and spills, found "
                f"{log.strip() or 'nothing'}; this version of triton may print it differently"
            )
        stack, stores, loads = (sum(map(int, column)) for column in zip(*stacks, strict=True))
        return CompiledVariant(
            target=self.target,
            kernel=name,
            launched_by=self.launched_by,
            num_warps=kernel.metadata.num_warps,
            num_registers=max(map(int, registers)),
            shared_bytes=kernel.metadata.shared,
            stack_bytes=stack,
            spill_store_bytes=stores,
            spill_load_bytes=loads,
            num_barriers=len(_BARRIER.findall(kernel.asm["ptx"])),
        )


def _compiled(function: JITFunction, target: int) -> list[Any]:
    """The kernels that a function has been compiled to for a target so far."""
    return list(function.device_caches[target][0].values())


@contextmanager
def _compiling_only(target: int) -> Iterator[_Recorder]:
    if knobs.runtime.interpret:
        raise RuntimeError("expected kernels to be compiled, found TRITON_INTERPRET set; unset it and run again")
    recorder = _Recorder(JITFunction.run, target, [])
    before = JITFunction.run, driver._active, knobs.nvidia.dump_ptxas_log, knobs.compilation.always_compile
    JITFunction.run = lambda function, *arguments, **options: recorder.compile(function, arguments, options)
    driver.set_active(CompileOnlyDriver(target))
    knobs.nvidia.dump_ptxas_log = knobs.compilation.always_compile = True
    try:
        yield recorder
    finally:
        JITFunction.run, driver._active, knobs.nvidia.dump_ptxas_log, knobs.compilation.always_compile = before


def compile_for(target: int, launches: Iterable[Launch]) -> list[CompiledVariant]:
    """Compile everything that some launches would run.

    Args:
        target: compute capability without the dot, such as 90.
        launches: what each is called in the result, and a function that launches kernels on tensors of the CPU. What
            the kernels would have written is not there.

    Returns:
        The variants in the order in which they were first needed.

    Raises:
        RuntimeError: Triton runs its interpreter, or does not report what ptxas found.
    """
    with _compiling_only(target) as recorder:
        for recorder.launched_by, launch in launches:
            launch()
    return recorder.variants


def kernels_in(package: ModuleType) -> set[str]:
    """Names of the kernels that can be launched: the Triton functions of a package whose names end in _kernel."""
    found = set()
    for module_info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        module = importlib.import_module(module_info.name)
        found |= {name for name, value in vars(module).items() if isinstance(value, JITFunction)}
    return {name for name in found if name.endswith("_kernel")}


def complaints(target: int, variants: Iterable[CompiledVariant], expected: set[str]) -> list[str]:
    """What is wrong with the variants of a target, a line each.

    Register spills, more shared memory than a program may have, and kernels that nothing launched.
    """
    variants = list(variants)
    lines = [
        f"sm_{target} {item.kernel} ({item.launched_by}): expected no register spills, found {item.spill_store_bytes} "
        f"bytes stored and {item.spill_load_bytes} loaded; give it more warps or smaller tiles"
        for item in variants
        if item.spills
    ]
    lines += [
        f"sm_{target} {item.kernel} ({item.launched_by}): expected {SHARED_BYTES[target]} bytes of shared memory at "
        f"most, found {item.shared_bytes}; give it smaller tiles or fewer stages"
        for item in variants
        if item.shared_bytes > SHARED_BYTES[target]
    ]
    missing = sorted(expected - {item.kernel for item in variants})
    return lines + [f"sm_{target} {name}: expected a launch that compiles it, found none; add one" for name in missing]
