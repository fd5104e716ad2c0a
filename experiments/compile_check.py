"""python -m experiments.compile_check: compile every GPU kernel for GPUs that need not be there; refuse spills."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

import torch

import kernels
from harness.cli.command_line import FAILED, SUCCESS, CommandParser, exit_code_of
from harness.compile_check.compile import CompiledVariant, Launch, compile_for, complaints, kernels_in, to_text
from harness.compile_check.core_calls import (
    deferring,
    every_method,
    masked,
    other_masked_shapes,
    other_shapes,
    truncated,
)
from harness.compile_check.layer_calls import built_in_layers, layers, other_layers, products
from harness.models import fused
from harness.models.fused.skinny_linear import MEASURED_CAPABILITY
from harness.settings.schema import SettingsError
from kernels.contract import VerificationMethod as Method

TARGETS = (90, 80, 100)
ONLY_TARGETS = {"_skinny_linear_kernel": 10 * MEASURED_CAPABILITY[0] + MEASURED_CAPABILITY[1]}
"""Of kernels that run on GPUs of one compute capability: it. They are compiled for no other."""
DTYPES = (torch.bfloat16, torch.float16, torch.float32)

USAGE = f"""\
usage: python -m experiments.compile_check [--debug]

Compiles every kernel of the sampling core and of the fused layers as its own launches ask, without a GPU: all variants
for sm_{TARGETS[0]}, and every kind of kernel once for {" and ".join(f"sm_{target}" for target in TARGETS[1:])}.
Prints registers, shared memory, stack and spills of every variant when all are done, after about ten minutes of two CPU
cores. Exits with 1 when a variant spills registers, or when a kernel of these packages is launched by none of the calls
(harness/compile_check/core_calls.py, harness/compile_check/layer_calls.py). It has no settings.

options:
  --debug     a full traceback where otherwise one line says what is wrong
  -h, --help  this text"""


def kinds() -> Iterator[Launch]:
    """Every kind of kernel once."""
    bfloat16 = DTYPES[0]
    yield from every_method(bfloat16)
    yield from truncated(bfloat16, (Method.block,))
    yield from masked(bfloat16, (Method.block,))
    yield from deferring()
    yield from layers(bfloat16)
    yield from built_in_layers(bfloat16)


def core_calls() -> Iterator[Launch]:
    """Every method and every type."""
    for dtype in DTYPES:
        yield from every_method(dtype)
    yield from deferring()


def layer_calls() -> Iterator[Launch]:
    """The layers in every type."""
    for dtype in DTYPES:
        yield from layers(dtype)
    for dtype in (torch.bfloat16, torch.float16):
        yield from products(dtype)
    yield from built_in_layers(torch.bfloat16)
    yield from other_layers(torch.bfloat16)


def truncated_calls() -> Iterator[Launch]:
    """Truncation, and unusual shapes."""
    yield from truncated(torch.bfloat16, Method)
    yield from other_shapes(torch.bfloat16)


def masked_calls() -> Iterator[Launch]:
    """Masks."""
    yield from masked(torch.bfloat16, Method)
    yield from masked(torch.float32, (Method.block,))
    yield from other_masked_shapes(torch.bfloat16)


SHARES: tuple[tuple[int, Callable[[], Iterator[Launch]]], ...] = (
    (TARGETS[0], truncated_calls),
    (TARGETS[0], masked_calls),
    (TARGETS[0], core_calls),
    (TARGETS[0], layer_calls),
    *((target, kinds) for target in TARGETS[1:]),
)
"""The calls whose kernels are compiled, in shares that processes take in turn; everything for the first target."""


def compile_share(number: int) -> list[CompiledVariant]:
    """The variants of one share; one that two shares need is in both."""
    target, calls = SHARES[number]
    return compile_for(target, calls())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return exit_code_of(_main, arguments)


def _main(arguments: Sequence[str]) -> int:
    options, others = CommandParser().parse(arguments)
    if options.help:
        print(USAGE)
        return SUCCESS
    if others:
        raise SettingsError(f"expected no arguments, found {' '.join(others)}; --help says what is compiled")
    return check()


def check() -> int:
    """Compile everything, print what was found of every variant, and on standard error what is wrong."""
    wrong: list[str] = []
    expected = kernels_in(kernels) | kernels_in(fused)
    num_processes = min(len(SHARES), os.cpu_count() or 1)
    with ProcessPoolExecutor(num_processes, multiprocessing.get_context("spawn")) as processes:
        found = [variant for share in processes.map(compile_share, range(len(SHARES))) for variant in share]
    for target in TARGETS:
        variants = [item for item in found if item.target == target]
        wrong += complaints(target, variants, {name for name in expected if ONLY_TARGETS.get(name, target) == target})
    print(to_text(found))
    print(f"\n{len(found)} variants of {len({item.kernel for item in found})} kernels compiled")
    for line in wrong:
        print(line, file=sys.stderr)
    return FAILED if wrong else SUCCESS


if __name__ == "__main__":
    sys.exit(main())
