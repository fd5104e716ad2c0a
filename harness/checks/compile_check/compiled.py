"""Compile Triton kernels without a GPU, and read what they ask of one: registers, memory, spills.

What is compiled are recorded launches (harness.engine.compile_ahead.variant): the constants, argument types, alignments
and options of the launchers themselves. What ptxas has to say about a kernel is its own report, of the very
compilation. This module does not know the kernels of the project.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import multiprocessing
import pkgutil
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from types import ModuleType
from typing import Any, NamedTuple

from triton import knobs
from triton.runtime.jit import JITFunction

from harness.engine.compile_ahead.variant import Variant, compile_variant, recorded

Launch = tuple[str, Callable[[], Any]]
"""What a launch is called in the result, and a function that launches kernels on tensors without values."""
SHARED_BYTES = {80: 163 * 1024, 89: 99 * 1024, 90: 227 * 1024, 100: 227 * 1024, 120: 99 * 1024}
"""Of a program at most, by target (CUDA C++ Programming Guide, table of compute capabilities)."""
DIGEST_LENGTH = 16
"""Hexadecimal digits."""
_REGISTERS = re.compile(r"Used (\d+) registers")
_BARRIER = re.compile(r"\b(?:bar|barrier)\.sync")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


class RecordedLaunch(NamedTuple):
    """One variant of a kernel that is launched on one target."""

    target: int
    """Compute capability without the dot, such as 90."""
    launched_by: str
    """The first launch that needed it."""
    variant: Variant

    @property
    def key(self) -> str:
        """Equal keys are compiled to equal code by one version of Triton."""
        # those are paths of files that come with Triton
        options = sorted((name, value) for name, value in self.variant.options.items() if name != "extern_libs")
        return hashlib.sha256(f"{self.variant.source().hash()} {options}".encode()).hexdigest()[:DIGEST_LENGTH]


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
    code: str
    """Digest of its machine code."""

    @property
    def spills(self) -> bool:
        return self.spill_store_bytes > 0 or self.spill_load_bytes > 0


def record(target: int, launches: Iterable[Launch]) -> list[RecordedLaunch]:
    """Every variant that some launches need, in the order in which they need it.

    Args:
        target: compute capability without the dot, such as 90.
        launches: of kernels that can be imported. One that this process has recorded before is left out.

    Raises:
        RuntimeError: Triton runs its interpreter.
    """
    found: list[RecordedLaunch] = []
    with recorded(target) as variants:
        for name, launch in launches:
            launch()
            found += [RecordedLaunch(target, name, variant) for variant in variants[len(found) :]]
    return found


def compile_launch(recorded_launch: RecordedLaunch) -> CompiledVariant:
    """Compile what was recorded, whatever Triton's cache holds.

    Raises:
        RuntimeError: Triton does not report what ptxas found.
    """
    target, launched_by, variant = recorded_launch
    log, before = io.StringIO(), (knobs.nvidia.dump_ptxas_log, knobs.compilation.always_compile)
    knobs.nvidia.dump_ptxas_log = knobs.compilation.always_compile = True
    try:
        with redirect_stdout(log):
            kernel = compile_variant(variant, target)
    finally:
        knobs.nvidia.dump_ptxas_log, knobs.compilation.always_compile = before
    registers, stacks = _REGISTERS.findall(log.getvalue()), _STACK.findall(log.getvalue())
    if not registers or not stacks:
        raise RuntimeError(
            f"{variant.kernel} for sm_{target}: expected the report of ptxas with registers and spills, found "
            f"{log.getvalue().strip() or 'nothing'}; this version of triton may print it differently"
        )
    stack, stores, loads = (sum(map(int, column)) for column in zip(*stacks, strict=True))
    return CompiledVariant(
        target=target,
        kernel=variant.kernel,
        launched_by=launched_by,
        num_warps=kernel.metadata.num_warps,
        num_registers=max(map(int, registers)),
        shared_bytes=kernel.metadata.shared,
        stack_bytes=stack,
        spill_store_bytes=stores,
        spill_load_bytes=loads,
        num_barriers=len(_BARRIER.findall(kernel.asm["ptx"])),
        code=code_digest(kernel.asm["cubin"]),
    )


def code_digest(cubin: bytes) -> str:
    """Digest of the machine code in a cubin, an ELF file of 64 bits; names, lines and paths are no part of it.

    Raises:
        ValueError: it has no machine code.
    """
    (table,), (size, count, names) = struct.unpack_from("<Q", cubin, 40), struct.unpack_from("<3H", cubin, 58)
    # name, type, flags, address, offset, size
    sections = [struct.unpack_from("<2I4Q", cubin, table + size * index) for index in range(count)]
    first_name = sections[names][4]
    code = [
        cubin[offset : offset + length]
        for name, _, _, _, offset, length in sections
        if cubin.startswith(b".text.", first_name + name)
    ]
    if not code:
        raise ValueError("expected a cubin with a section .text, found none")
    return hashlib.sha256(b"".join(code)).hexdigest()[:DIGEST_LENGTH]


def compile_launches(launches: Sequence[RecordedLaunch], num_processes: int) -> list[CompiledVariant]:
    """Compile recorded launches in processes of their own.

    Raises:
        RuntimeError: see compile_launch.
    """
    # those with many arguments take longest, and none is to be left at the end
    order = sorted(range(len(launches)), key=lambda index: -len(launches[index].variant.signature))
    with ProcessPoolExecutor(num_processes, multiprocessing.get_context("spawn")) as processes:
        compiled = dict(zip(order, processes.map(compile_launch, [launches[index] for index in order]), strict=True))
    return [compiled[index] for index in range(len(launches))]


def kernels_in(package: ModuleType) -> set[str]:
    """Names of the kernels that can be launched: the Triton functions of a package whose names end in _kernel."""
    found = set()
    for module_info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        module = importlib.import_module(module_info.name)
        found |= {name for name, value in vars(module).items() if isinstance(value, JITFunction)}
    return {name for name in found if name.endswith("_kernel")}
