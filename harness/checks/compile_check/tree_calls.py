"""Calls of the sampling core with trees of drafts whose kernels are compiled.

This module does not know for which GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from harness.checks.compile_check.core_calls import (
    DRAFT_VOCAB_SIZE,
    NUM_REQUESTS,
    ODD_VOCAB_SIZE,
    TOY_VOCAB_SIZE,
    VOCAB_SIZE,
    mask_of,
    sampling_of,
    streams_of,
)
from harness.engine.compile_ahead.compile import Launch
from kernels.contract import Draft, RowStats, SiblingDraws
from kernels.methods import TreeMethod, VerificationMethod
from kernels.tree.draw_children import draw_children
from kernels.verification import probe
from kernels.verify import verify

NUM_NODES, NUM_CHILDREN = 32, 4
OfTrees = TreeMethod | VerificationMethod
METHODS: tuple[OfTrees, ...] = (
    *sorted(TreeMethod, key=lambda method: method.value),
    VerificationMethod.synthetic,
)


def _verify(
    method: OfTrees,
    dtype: torch.dtype,
    *,
    vocab_size: int = VOCAB_SIZE,
    siblings: SiblingDraws = SiblingDraws.distinct,
    truncates: bool = False,
    is_mixed: bool = False,
    one_hot: bool = False,
    small_vocabulary: bool = False,
    with_stats: bool = True,
    masked: bool = False,
) -> None:
    size = (NUM_REQUESTS, NUM_NODES, DRAFT_VOCAB_SIZE if small_vocabulary else vocab_size)
    num_rows = NUM_REQUESTS * (NUM_NODES + 1)
    none = torch.zeros(size[:2], dtype=torch.int64)
    draft = Draft(
        none,
        torch.full((NUM_REQUESTS,), NUM_NODES),
        None if one_hot else torch.empty(size, dtype=dtype),
        None if one_hot else torch.arange(NUM_REQUESTS),
        torch.arange(DRAFT_VOCAB_SIZE) if small_vocabulary else None,
        RowStats.empty(*size[:2]) if with_stats and not one_hot else None,
        mask_of(masked and not one_hot, vocab_size, *size[:2]),
        parents=none,
        siblings=siblings,
    )
    logits, mask = torch.empty(num_rows, vocab_size, dtype=dtype), mask_of(masked, vocab_size, num_rows)
    sampling = sampling_of(NUM_REQUESTS, truncates, is_mixed)
    rule = probe(method, 1)
    verify(logits, draft, sampling, rule, streams_of(NUM_REQUESTS), mask=mask)


def _draw_children(
    dtype: torch.dtype,
    *,
    vocab_size: int = VOCAB_SIZE,
    siblings: SiblingDraws = SiblingDraws.distinct,
    truncates: bool = False,
    masked: bool = False,
) -> None:
    logits, mask = torch.empty(NUM_REQUESTS, vocab_size, dtype=dtype), mask_of(masked, vocab_size, NUM_REQUESTS)
    branches = torch.zeros(NUM_REQUESTS, NUM_CHILDREN, dtype=torch.int64)
    sampling = sampling_of(NUM_REQUESTS, truncates)
    draw_children(logits, sampling, streams_of(NUM_REQUESTS), siblings, branches, mask=mask)


def trees(dtype: torch.dtype) -> Iterator[Launch]:
    """Every method for trees that runs on kernels, and both kinds of siblings."""
    name = str(dtype).removeprefix("torch.")
    for method in METHODS:
        for siblings in method.traits.siblings:
            call = partial(_verify, method, dtype, siblings=siblings)
            yield f"verify {_called(method)}, {siblings.value} siblings, {name}", call
    for siblings in SiblingDraws:
        yield f"draw {siblings.value} children, {name}", partial(_draw_children, dtype, siblings=siblings)


def other_trees(dtype: torch.dtype) -> Iterator[Launch]:
    """Vocabularies, layouts and drafts that change the code of their kernels."""
    options: dict[str, dict[str, Any]] = {
        "one-hot drafts": {"one_hot": True},
        "no statistics": {"with_stats": False},
        "smaller draft vocabulary": {"small_vocabulary": True},
        "odd vocabulary": {"vocab_size": ODD_VOCAB_SIZE},
        "toy vocabulary": {"vocab_size": TOY_VOCAB_SIZE},
        "truncated": {"truncates": True},
        "mixed": {"truncates": True, "is_mixed": True},
        "masked": {"masked": True},
        "masked and truncated, odd vocabulary": {"masked": True, "truncates": True, "vocab_size": ODD_VOCAB_SIZE},
    }
    for method in METHODS:
        for words, chosen in options.items():
            if not (words == "one-hot drafts" and len(method.traits.siblings) == 1):
                yield (
                    f"verify {_called(method)}, {words}",
                    partial(_verify, method, dtype, **_fitting(method), **chosen),
                )
    children: dict[str, dict[str, Any]] = {
        "odd vocabulary": {"vocab_size": ODD_VOCAB_SIZE},
        "toy vocabulary": {"vocab_size": TOY_VOCAB_SIZE},
        "truncated": {"truncates": True},
        "masked": {"masked": True},
        "masked and truncated, odd vocabulary": {"masked": True, "truncates": True, "vocab_size": ODD_VOCAB_SIZE},
    }
    for words, chosen in children.items():
        yield f"draw children, {words}", partial(_draw_children, dtype, **chosen)


def _called(method: OfTrees) -> str:
    """A method that verifies chains too has calls of its own name there."""
    return method.value if isinstance(method, TreeMethod) else f"{method.value} trees"


def _fitting(method: OfTrees) -> dict[str, Any]:
    """How the siblings are drawn, of those that the method takes the one whose code is longest."""
    return {"siblings": method.traits.siblings[-1]}
