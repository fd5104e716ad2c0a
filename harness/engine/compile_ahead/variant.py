"""What Triton compiles for a launch, apart from the process that launches: recorded, looked up in its cache, compiled.

Triton keeps what it has compiled in a folder that processes share. A variant is everything that the place there follows
from, so that a process finds what another one has compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.compiler import ASTSource, compile
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from kernels.methods.hooks import common_key

WARP_SIZE = 32


class Variant(NamedTuple):
    """A kernel with the types, constants and alignments of its arguments, and the options of its compilation."""

    module: str
    kernel: str
    """Its name there."""
    signature: Mapping[str, Any]
    constants: Mapping[Any, Any]
    attributes: Mapping[Any, Any]
    options: Mapping[str, Any]

    def source(self, kind: type[ASTSource] = ASTSource) -> ASTSource:
        """What Triton is given.

        Raises:
            ImportError, AttributeError: there is no such kernel here.
        """
        function = getattr(import_module(self.module), self.kernel)
        common_key(function)
        return kind(function, self.signature, self.constants, self.attributes)


class _NotCompiledError(Exception):
    """A variant is not in the cache."""


class _Lookup(ASTSource):
    """A source that is looked for and never compiled."""

    def make_ir(self, *_: Any) -> Any:
        raise _NotCompiledError


def compile_variant(variant: Variant, target: int) -> Any:
    """Compile a variant into Triton's cache, unless it is there; returns the kernel as Triton has it.

    Args:
        variant: of a kernel that can be imported.
        target: compute capability without the dot, such as 90.

    Raises:
        Exception: whatever Triton raises where it cannot be compiled.
    """
    return compile(variant.source(), GPUTarget("cuda", target, WARP_SIZE), dict(variant.options))


def compiled_key(variant: Variant, target: int) -> str | None:
    """The key by which Triton's cache holds a variant for a target; None if it does not."""
    try:
        found = compile(variant.source(_Lookup), GPUTarget("cuda", target, WARP_SIZE), dict(variant.options))
    except _NotCompiledError:
        return None
    key: str = found.hash
    return key


class RecordingDriver(DriverBase):
    """Stands for a GPU that is not there; kernels that were only recorded are kept apart from those of any device."""

    def __init__(self, target: int) -> None:
        super().__init__()
        self.target = target

    @classmethod
    def is_active(cls) -> bool:
        return True

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.target, WARP_SIZE)

    def get_current_device(self) -> Any:
        return f"recorded for {self.target}"

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def map_python_to_cpp_type(self, ty: str) -> str:
        raise NotImplementedError(f"nothing is launched, so no launcher passes a {ty}")

    def get_benchmarker(self) -> Any:
        raise NotImplementedError("nothing is launched, so nothing is timed")


@contextmanager
def recorded(target: int) -> Iterator[list[Variant]]:
    """Record what launches inside would compile for a target; nothing is compiled or launched.

    The list grows while they are made; a variant that this process has recorded before is left out. No kernel may be
    launched on a device meanwhile.

    Raises:
        RuntimeError: Triton runs its interpreter.
    """
    if knobs.runtime.interpret:
        raise RuntimeError("expected kernels that are compiled, found TRITON_INTERPRET set; unset it and run again")
    found: list[Variant] = []
    before = JITFunction.run, JITFunction._do_compile, driver._active

    def record(
        function: JITFunction,
        key: Any,
        signature: Mapping[str, Any],
        device: Any,
        constants: Mapping[Any, Any],
        options: Any,
        attributes: Mapping[Any, Any],
        warmup: bool,
    ) -> object:
        name = function.fn.__qualname__
        found.append(Variant(function.module, name, signature, constants, attributes, vars(options)))
        # known from here on
        return function.device_caches[device][0].setdefault(key, object())

    run: Callable[..., Any] = before[0]
    JITFunction.run = lambda function, *arguments, **named: run(function, *arguments, **{**named, "warmup": True})
    JITFunction._do_compile = record
    driver.set_active(RecordingDriver(target))
    try:
        yield found
    finally:
        JITFunction.run, JITFunction._do_compile, driver._active = before


@contextmanager
def launched() -> Iterator[dict[str, tuple[str, str]]]:
    """Module and name of each kernel that is launched inside, by the key by which Triton's cache holds it from then on.

    Kernels that are compiled there get the key that every process gives them. The dictionary grows meanwhile.
    """
    found: dict[str, tuple[str, str]] = {}
    run: Callable[..., Any] = JITFunction.run

    def note(function: JITFunction, *arguments: Any, **named: Any) -> Any:
        common_key(function)
        kernel = run(function, *arguments, **named)
        # None where a hook of Triton's has refused to compile
        if kernel is not None:
            found[kernel.hash] = function.module, function.fn.__qualname__
        return kernel

    JITFunction.run = note
    try:
        yield found
    finally:
        JITFunction.run = run
