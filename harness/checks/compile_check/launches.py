"""The launches that the compile check compiles: one list, recorded without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch

import kernels
from harness.checks.compile_check.chosen import CHOSEN
from harness.checks.compile_check.compiled import Launch, RecordedLaunch, kernels_in, record
from harness.checks.compile_check.core_calls import (
    DTYPES,
    edits,
    every_method,
    masked,
    odd_rows,
    of_method,
    other_masked_shapes,
    other_shapes,
    packed,
    truncated,
)
from harness.checks.compile_check.layer_calls import other_layers
from harness.checks.compile_check.step_calls import EVERY_CHANGE, EVERY_TARGET, STEPS, largest_of_each_kind, steps
from harness.checks.compile_check.tree_calls import other_trees, trees
from harness.config.cli.methods import check_hooks, check_methods, method_of
from harness.models import fused
from harness.models.fused.linear import MEASURED_CAPABILITY
from kernels.contract import VerificationMethod as Method

FIRST_TARGET = 90
OTHER_TARGETS = (80, 89, 100, 120)
ONLY_TARGETS = {"_skinny_linear_kernel": 10 * MEASURED_CAPABILITY[0] + MEASURED_CAPABILITY[1]}
"""Of kernels that run on GPUs of one compute capability: it. They are compiled for no other."""


def on_meta(launches: Iterable[Launch]) -> Iterator[Launch]:
    """Launches whose tensors are made on the meta device: they have shapes and no memory."""

    def launch(call: Callable[[], Any]) -> None:
        with torch.device("meta"):
            call()

    for name, call in launches:
        yield name, partial(launch, call)


def calls() -> Iterator[Launch]:
    """Calls of the core and of fused operations: every method, type, layout and mask; names are unique."""
    bfloat16 = torch.bfloat16
    for dtype in DTYPES:
        yield from every_method(dtype)
        yield from odd_rows(dtype)
        yield from trees(dtype)
    yield from other_trees(bfloat16)
    yield from edits(bfloat16)
    yield from truncated(bfloat16, Method)
    yield from other_shapes(bfloat16)
    yield from masked(bfloat16, Method)
    yield from masked(torch.float32, (Method.block,))
    yield from other_masked_shapes(bfloat16)
    yield from other_layers(bfloat16)


def kinds() -> Iterator[Launch]:
    """Every kind of call once; masked batches that cut are left to the mixed ones, which launch the same kernels."""
    bfloat16 = torch.bfloat16
    yield from every_method(bfloat16)
    yield from odd_rows(bfloat16)
    yield from truncated(bfloat16, (Method.block,))
    yield from masked(bfloat16, (Method.block,), ("masked", "masked and mixed"))
    yield from packed(bfloat16)
    yield from trees(bfloat16)
    yield from edits(bfloat16)


def launches_of(everything: bool) -> list[RecordedLaunch]:
    """All launches of all targets, or those that are compiled for every change: chosen calls, and of steps the largest
    variant of each kind.

    Raises:
        RuntimeError: Triton runs its interpreter.
    """
    if not everything:
        found = record(FIRST_TARGET, on_meta(call for call in calls() if call[0] in CHOSEN))
        return found + largest_of_each_kind(record(FIRST_TARGET, steps(EVERY_CHANGE)))
    found = record(FIRST_TARGET, chain(on_meta(calls()), steps(STEPS)))
    for target in OTHER_TARGETS:
        found += record(target, on_meta(kinds())) + largest_of_each_kind(record(target, steps(EVERY_TARGET)))
    return found


def expected_kernels(launches: Iterable[RecordedLaunch]) -> set[tuple[int, str]]:
    """Targets and kernels that some launch must be of: all that there are, for every target of the launches."""
    targets, names = {launch.target for launch in launches}, kernels_in(kernels) | kernels_in(fused)
    return {(target, name) for target in targets for name in names if ONLY_TARGETS.get(name, target) == target}


def launches_of_methods(names: Sequence[str], everything: bool) -> list[RecordedLaunch]:
    """All verifications of chains by some methods.

    Args:
        names: built-in methods, and rules of the user's own by their paths.
        everything: for every target, not the first alone.

    Raises:
        SettingsError: there is no such method, or it has no hooks.
        RuntimeError: Triton runs its interpreter.
    """
    check_methods(names, [method.value for method in Method])
    check_hooks(names)
    targets = (FIRST_TARGET, *OTHER_TARGETS) if everything else (FIRST_TARGET,)
    of_all = [list(on_meta(of_method(method_of(name)))) for name in names]
    return [launch for target in targets for launch in record(target, chain.from_iterable(of_all))]
