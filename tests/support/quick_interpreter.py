"""Triton's interpreter without work that changes nothing: tests of kernels on a CPU take a third of the time.

A launch puts interpreted functions into triton.language. The interpreter looks through its modules again in every call
of a device function, which takes longer than most of these functions and finds nothing left to replace. It computes
every sum, difference and product of integers a second time for an overflow check that only a debug build evaluates.
Each value, type, constant and comparison is built anew, and two operands of one type are converted and broadcast.

And with the GPU's maximum and minimum, which leave out NaN where Triton's interpreter passes it on.
"""

import math
from dataclasses import replace
from functools import cache
from types import FunctionType
from typing import Any

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
    tl.block_type.__hash__ = tl.pointer_type.__hash__ = tl.dtype.__hash__
    tl.block_type.__new__, tl.block_type.__init__ = shared_block_type, lambda *_: None
    tl.core._unwrap_if_constexpr = unwrapping(tl.core._unwrap_if_constexpr)
    semantic = type(interpreter.interpreter_semantic)
    semantic.binary_op_type_checking_impl = checking_operands(semantic.binary_op_type_checking_impl)
    semantic.broadcast_impl_value = broadcasting(semantic.broadcast_impl_value)
    semantic.scalar_constant = sharing_constants(semantic.scalar_constant)


@cache
def shape_constants(shape: tuple[int, ...]) -> tuple[tl.constexpr, tl.tuple]:
    return tl.constexpr(math.prod(shape)), tl.tuple([tl.constexpr(size) for size in shape])


def initialize_tensor(self: tl.tensor, handle: object, type: tl.dtype) -> None:
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.numel, self.shape = shape_constants(tuple(type.shape) if type.is_block() else ())


def same_type(self: tl.dtype, other: object) -> bool:
    other = other.value if isinstance(other, tl.constexpr) else other
    return self is other or (isinstance(other, tl.dtype) and self.name == other.name)


INTEGERS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
SAME_RESULT = frozenset({"int1", "fp32", "fp64", *INTEGERS})
"""Names of the types of which two operands need no conversion, in a division either."""
BLOCK_TYPES: dict[tuple[Any, ...], tl.block_type] = {}
build_block_type = tl.block_type.__init__


def shared_block_type(cls: type, element_ty: tl.dtype, shape: Any) -> tl.block_type:
    sizes = tuple([size.value if isinstance(size, tl.constexpr) else size for size in shape])
    key = (element_ty if isinstance(element_ty, tl.pointer_type) else element_ty.name, sizes)
    found = BLOCK_TYPES.get(key)
    if found is None:
        found = object.__new__(cls)
        build_block_type(found, element_ty, list(sizes))
        BLOCK_TYPES[key] = found
    return found


def unwrapping(unwrap: Any) -> Any:
    return lambda value: value if type(value) in {tl.tensor, int} else unwrap(value)


def checking_operands(check: Any) -> Any:
    """Two operands of one type are left as they are; the constant that a number becomes beside a type is kept."""
    constants: dict[tuple[Any, ...], tl.tensor] = {}

    def check_once(self: Any, left: Any, right: Any, *options: bool, **named: bool) -> tuple[tl.tensor, tl.tensor]:
        if type(left) is not tl.tensor:
            return check(self, left, right, *options, **named)
        if type(right) is tl.tensor:
            same = left.type is right.type and left.dtype.name in SAME_RESULT
            return (left, right) if same else check(self, left, right, *options, **named)
        key = (left.type, type(right), right, options, tuple(named.items()))
        if key in constants:
            return left, constants[key]
        converted, constant = check(self, left, right, *options, **named)
        if converted is left:
            constants[key] = constant
        return converted, constant

    return check_once


def broadcasting(broadcast: Any) -> Any:
    return lambda self, left, right: (left, right) if left.type is right.type else broadcast(self, left, right)


def sharing_constants(build: Any) -> Any:
    constants: dict[tuple[Any, ...], tl.tensor] = {}

    def build_once(self: Any, value: Any, dtype: tl.dtype) -> tl.tensor:
        key = (type(value), value, dtype)
        found = constants.get(key)
        if found is None:
            found = constants[key] = build(self, value, dtype)
        return found

    return build_once
