"""What the compile check compiles, in shares that processes take in turn, and what must hold of it all."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import torch

import kernels
from harness.checks.compile_check.chosen import CHOSEN
from harness.checks.compile_check.core_calls import (
    bookkeeping,
    every_method,
    masked,
    odd_rows,
    other_masked_shapes,
    other_shapes,
    packed,
    truncated,
)
from harness.checks.compile_check.layer_calls import built_in_layers, layers, other_layers, products
from harness.checks.compile_check.tree_calls import other_trees, trees
from harness.engine.compile_ahead.compile import CompiledVariant, Launch, compile_for, complaints, kernels_in
from harness.models import fused
from harness.models.fused.linear import MEASURED_CAPABILITY
from kernels.contract import VerificationMethod as Method

FIRST_TARGET = 90
OTHER_TARGETS = (80, 89, 100, 120)
ONLY_TARGETS = {"_skinny_linear_kernel": 10 * MEASURED_CAPABILITY[0] + MEASURED_CAPABILITY[1]}
"""Of kernels that run on GPUs of one compute capability: it. They are compiled for no other."""
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def kinds() -> Iterator[Launch]:
    """Every kind of kernel once; masked batches that cut are left to the mixed ones, which launch the same kernels."""
    bfloat16 = DTYPES[0]
    yield from every_method(bfloat16)
    yield from odd_rows(bfloat16)
    yield from truncated(bfloat16, (Method.block,))
    yield from masked(bfloat16, (Method.block,), ("masked", "masked and mixed"))
    yield from packed(bfloat16)
    yield from trees(bfloat16)
    yield from bookkeeping()
    yield from layers(bfloat16)
    yield from built_in_layers(bfloat16)


def core_calls() -> Iterator[Launch]:
    """Every method and every type."""
    for dtype in DTYPES:
        yield from every_method(dtype)
        yield from odd_rows(dtype)
        yield from trees(dtype)
    yield from other_trees(torch.bfloat16)
    yield from bookkeeping()


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


PARTS = 4
"""Of a share, which processes take in turn: as many as leave no process alone for long at the end."""
SHARES: tuple[tuple[int, Callable[[], Iterator[Launch]]], ...] = (
    (FIRST_TARGET, masked_calls),
    (FIRST_TARGET, truncated_calls),
    *((target, kinds) for target in OTHER_TARGETS),
    (FIRST_TARGET, core_calls),
    (FIRST_TARGET, layer_calls),
)
"""The calls whose kernels can be compiled, the longest share first; everything for the first target."""


def calls_of(number: int, everything: bool) -> list[Launch]:
    """The calls of one share: all of them, or those that are compiled for every change."""
    target, calls = SHARES[number]
    return [(name, launch) for name, launch in calls() if everything or (target == FIRST_TARGET and name in CHOSEN)]


def compile_part(place: int, everything: bool) -> list[CompiledVariant]:
    """The variants of one part of a share; one that two parts need is in both."""
    number, part = divmod(place, PARTS)
    calls = calls_of(number, everything)
    first, end = (len(calls) * border // PARTS for border in (part, part + 1))
    return compile_for(SHARES[number][0], calls[first:end])


def compile_shares(everything: bool) -> tuple[list[CompiledVariant], list[str]]:
    """Every variant that was compiled, and a line about everything that is wrong with them."""
    expected = kernels_in(kernels) | kernels_in(fused)
    places = range(len(SHARES) * PARTS)
    num_processes = min(len(places), os.cpu_count() or 1)
    with ProcessPoolExecutor(num_processes, multiprocessing.get_context("spawn")) as processes:
        parts = processes.map(partial(compile_part, everything=everything), places)
        found = [variant for part in parts for variant in part]
    wrong: list[str] = []
    for target in (FIRST_TARGET, *OTHER_TARGETS) if everything else (FIRST_TARGET,):
        variants = [item for item in found if item.target == target]
        wrong += complaints(target, variants, {name for name in expected if ONLY_TARGETS.get(name, target) == target})
    return found, wrong
