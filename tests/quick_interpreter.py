"""Triton's interpreter without work that it repeats: tests of kernels on a CPU take half as long.

A launch puts interpreted functions into triton.language. The interpreter looks through its modules again in every call
of a device function, which takes longer than most of these functions and finds nothing left to replace.
"""

from functools import cache
from types import FunctionType

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
