"""Triton's interpreter without work that changes nothing: tests of kernels on a CPU take a third of the time.

A launch puts interpreted functions into triton.language. The interpreter looks through its modules again in every call
of a device function, which takes longer than most of these functions and finds nothing left to replace. It computes
every sum, difference and product of integers a second time for an overflow check that only a debug build evaluates.
Each value, type and comparison builds the same constants anew.

And with the GPU's maximum and minimum, which leave out NaN where Triton's interpreter passes it on.
"""

import math
from dataclasses import replace
from functools import cache
from types import FunctionType

import numpy as np
import triton.language as tl


def shorten() -> None:
    """Replace the functions of a module once per launch; changes nothing in a Triton that does this elsewhere."""
    from triton.runtime import interpreter

    patch, scope = getattr(interpreter, "_patch_lang", None), getattr(interpreter, "_LangPatchScope", None)
    if patch is None or scope is None:
        return

    @cache
    def modules(function: FunctionType) -> list:
        return [value for value in function.__globals__.values() if value is tl or value is tl.core]

    def patch_once(function: FunctionType):
        is_patched = not any(tl.core.is_builtin(module.load) for module in modules(function))
        return scope() if is_patched else patch(function)

    interpreter._patch_lang = patch_once
    of_scalar, of_pointer = cache(interpreter._get_np_dtype), interpreter._get_np_dtype(tl.pointer_type(tl.int8))
    interpreter._get_np_dtype = lambda kind: (
        of_pointer if isinstance(kind.scalar, tl.pointer_type) else of_scalar(kind.scalar)
    )
    builder = interpreter.interpreter_builder
    builder.create_maxnumf = lambda left, right: builder.binary_op(left, right, np.fmax)
    builder.create_minnumf = lambda left, right: builder.binary_op(left, right, np.fmin)
    if not builder.options.debug:
        builder.options = replace(builder.options, sanitize_overflow=False)
    tl.tensor.__init__ = initialize_tensor
    tl.dtype.__eq__ = same_type


@cache
def shape_constants(shape: tuple[int, ...]) -> tuple[tl.constexpr, tl.tuple]:
    return tl.constexpr(math.prod(shape)), tl.tuple([tl.constexpr(size) for size in shape])


def initialize_tensor(self: tl.tensor, handle: object, type: tl.dtype) -> None:
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.numel, self.shape = shape_constants(tuple(type.shape) if type.is_block() else ())


def same_type(self: tl.dtype, other: object) -> bool:
    other = other.value if isinstance(other, tl.constexpr) else other
    return self is other or (isinstance(other, tl.dtype) and self.name == other.name)
