"""Calls of the sampling core with trees of drafts whose kernels are compiled.

This module does not know for which GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from harness.checks.compile_check.compiled import Launch
from harness.checks.compile_check.core_calls import (
    CUTS,
    MASKS,
    MIXED,
    NUM_REQUESTS,
    ODD,
    TOY_VOCAB_SIZE,
    VOCAB_SIZE,
    Batches,
    mask_of,
    name_of,
    sampling_of,
    streams_of,
    verifications,
)
from kernels.contract import SiblingDraws
from kernels.methods import TreeMethod, VerificationMethod
from kernels.tree.draw_children import draw_children

NUM_CHILDREN = 4
OfTrees = TreeMethod | VerificationMethod
METHODS: tuple[OfTrees, ...] = (
    *sorted(TreeMethod, key=lambda method: method.value),
    VerificationMethod.synthetic,
)


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
    name = name_of(dtype)
    for method in METHODS:
        for siblings in method.traits.siblings:
            yield from verifications(method, dtype, {f"{siblings.value} siblings": {}}, name, siblings=siblings)
    for siblings in SiblingDraws:
        yield f"draw {siblings.value} children, {name}", partial(_draw_children, dtype, siblings=siblings)


CHILDREN: Batches = {
    "odd vocabulary": ODD,
    "toy vocabulary": {"vocab_size": TOY_VOCAB_SIZE},
    "truncated": CUTS,
    "masked": MASKS,
    "masked and truncated, odd vocabulary": MASKS | CUTS | ODD,
}
SHAPES: Batches = CHILDREN | {
    "one-hot drafts": {"one_hot": True},
    "no statistics": {"with_stats": False},
    "smaller draft vocabulary": {"small_vocabulary": True},
    "mixed": MIXED,
}


def other_trees(dtype: torch.dtype) -> Iterator[Launch]:
    """Vocabularies, layouts and drafts that change the code of their kernels."""
    for method in METHODS:
        siblings = method.traits.siblings
        batches = {words: chosen for words, chosen in SHAPES.items() if len(siblings) > 1 or "one_hot" not in chosen}
        # of those that the method takes, the one whose code is longest
        yield from verifications(method, dtype, batches, siblings=siblings[-1])
    for words, chosen in CHILDREN.items():
        yield f"draw children, {words}", partial(_draw_children, dtype, **chosen)
