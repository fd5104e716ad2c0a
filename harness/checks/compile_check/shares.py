"""What the compile check compiles, in shares that processes take in turn, and what must hold of it all."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import torch

import kernels
from harness.checks.compile_check.chosen import CHOSEN
from harness.checks.compile_check.core_calls import (
    DTYPES,
    bookkeeping,
    every_method,
    masked,
    odd_rows,
    of_method,
    other_masked_shapes,
    other_shapes,
    packed,
    truncated,
)
from harness.checks.compile_check.layer_calls import built_in_layers, layers, other_layers, products
from harness.checks.compile_check.tree_calls import other_trees, trees
from harness.config.cli.methods import check_hooks, check_methods, method_of
from harness.engine.compile_ahead.compile import CompiledVariant, Launch, compile_for, complaints, kernels_in
from harness.models import fused
from harness.models.fused.linear import MEASURED_CAPABILITY
from kernels.contract import VerificationMethod as Method

FIRST_TARGET = 90
OTHER_TARGETS = (80, 89, 100, 120)
ONLY_TARGETS = {"_skinny_linear_kernel": 10 * MEASURED_CAPABILITY[0] + MEASURED_CAPABILITY[1]}
"""Of kernels that run on GPUs of one compute capability: it. They are compiled for no other."""


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
Share = tuple[int, Callable[[], Iterable[Launch]]]
"""A target and the calls whose kernels are compiled for it."""
SHARES: tuple[Share, ...] = (
    (FIRST_TARGET, masked_calls),
    (FIRST_TARGET, truncated_calls),
    *((target, kinds) for target in OTHER_TARGETS),
    (FIRST_TARGET, core_calls),
    (FIRST_TARGET, layer_calls),
)
"""All of them, the longest share first; everything for the first target."""


def chosen_calls(calls: Callable[[], Iterable[Launch]]) -> list[Launch]:
    """Those of some calls that are compiled for every change."""
    return [(name, launch) for name, launch in calls() if name in CHOSEN]


def shares_of(everything: bool) -> list[Share]:
    """All calls, or those that are compiled for every change."""
    if everything:
        return list(SHARES)
    return [(target, partial(chosen_calls, calls)) for target, calls in SHARES if target == FIRST_TARGET]


def compile_part(share: Share, part: int) -> list[CompiledVariant]:
    """The variants of one part of a share; one that two parts need is in both."""
    target, calls = share
    launches = list(calls())
    first, end = (len(launches) * border // PARTS for border in (part, part + 1))
    return compile_for(target, launches[first:end])


def compile_shares(shares: Sequence[Share], expected: Collection[str]) -> tuple[list[CompiledVariant], list[str]]:
    """Every variant of some shares, and a line about everything that is wrong with them.

    Args:
        shares: what is compiled.
        expected: names of the kernels that some call must launch.
    """
    places = [(share, part) for share in shares for part in range(PARTS)]
    num_processes = min(len(places), os.cpu_count() or 1)
    with ProcessPoolExecutor(num_processes, multiprocessing.get_context("spawn")) as processes:
        parts = processes.map(compile_part, *zip(*places, strict=True))
        found = [variant for part in parts for variant in part]
    wrong: list[str] = []
    for target in dict.fromkeys(target for target, _ in shares):
        variants = [item for item in found if item.target == target]
        wrong += complaints(target, variants, {name for name in expected if ONLY_TARGETS.get(name, target) == target})
    return found, wrong


def compile_all(everything: bool) -> tuple[list[CompiledVariant], list[str]]:
    """All calls, or those that are compiled for every change; a kernel that none launches is wrong too."""
    return compile_shares(shares_of(everything), kernels_in(kernels) | kernels_in(fused))


def compile_methods(names: Sequence[str], everything: bool) -> tuple[list[CompiledVariant], list[str]]:
    """All verifications of chains by some methods.

    Args:
        names: built-in methods, and rules of the user's own by their paths.
        everything: for every target, not the first alone.

    Raises:
        SettingsError: there is no such method, or it has no hooks.
    """
    targets = (FIRST_TARGET, *OTHER_TARGETS) if everything else (FIRST_TARGET,)
    check_methods(names, [method.value for method in Method])
    check_hooks(names)
    return compile_shares([(target, partial(of_method, method_of(name))) for target in targets for name in names], ())
