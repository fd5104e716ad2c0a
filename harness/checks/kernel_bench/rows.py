"""Rows of logits like a language model's, and drafts whose rows are the target's with an error; how they are sampled.

    logit(v) = 2.5 * normal                                    the bulk
    logit(v) = head + wobble - log(rank) + 0.5 * normal        64 tokens, if that is more: Zipf's law

`head` says how far the few large logits stand above the bulk; it is found such that top-p 0.95 at temperature 0.7 keeps
a given part of the vocabulary in the median row. `wobble`, one normal number per row, makes some rows certain and
others open. A constant shifts all so that the largest logit is near 20: the rounding of bfloat16 is then that of a real
head's logits, with its many ties. Flat rows are 20 + 0.5 * normal and rows of noise 3 * normal, and nothing else.

Shapes: N rows, V the vocabulary.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from harness.checks.kernel_bench.case import RowKind, Truncation
from kernels.contract import Sampling, Streams

BULK_STD, HEAD_STD, WOBBLE_STD, FLAT_STD, NOISE_STD = 2.5, 0.5, 1.0, 0.5, 3.0
NUM_HEAD = 64
LARGEST = 20.0
KEPT_PART = {RowKind.wide: 900 / 128_256, RowKind.peaked: 60 / 128_256}
"""Part of the vocabulary that top-p 0.95 keeps at temperature 0.7."""
TOP_K, TOP_P, MIN_P = 50, 0.95, 0.05
TEMPERATURE = 0.7
NUM_TRIED, NUM_HALVINGS = 24, 14
HEAD_RANGE = (0.0, 40.0)


def llm_rows(
    num_rows: int, vocab_size: int, head: float, generator: torch.Generator, wobble_std: float = WOBBLE_STD
) -> Tensor:
    """[N, V] float32, on the generator's device."""
    device, num_head = generator.device, max(1, min(NUM_HEAD, vocab_size // 500))
    rows = torch.randn(num_rows, vocab_size, generator=generator, device=device).mul_(BULK_STD)
    large = torch.randn(num_rows, num_head, generator=generator, device=device).mul_(HEAD_STD)
    large -= torch.arange(1, num_head + 1, device=device).log()
    large += head + wobble_std * torch.randn(num_rows, 1, generator=generator, device=device)
    token_ids = torch.randint(vocab_size, large.shape, generator=generator, device=device)
    return rows.scatter_reduce_(1, token_ids, large, "amax").add_(LARGEST - head)


def rows_of(kind: RowKind, num_rows: int, vocab_size: int, generator: torch.Generator) -> Tensor:
    """[N, V] float32 rows of a kind, on the generator's device."""
    if kind in (RowKind.flat, RowKind.noise):
        rows = torch.randn(num_rows, vocab_size, generator=generator, device=generator.device)
        return rows.mul_(NOISE_STD) if kind is RowKind.noise else rows.mul_(FLAT_STD).add_(LARGEST)
    return llm_rows(num_rows, vocab_size, head_of(kind, vocab_size, generator.device), generator)


@cache
def head_of(kind: RowKind, vocab_size: int, device: torch.device) -> float:
    """The `head` at which rows of this kind keep the part of the vocabulary that KEPT_PART says."""
    goal = max(1.5, KEPT_PART[kind] * vocab_size)
    low, high = HEAD_RANGE
    for _ in range(NUM_HALVINGS):
        head = (low + high) / 2
        generator = torch.Generator(device).manual_seed(0)
        # without the wobble every row is a median row
        kept = num_kept(llm_rows(NUM_TRIED, vocab_size, head, generator, wobble_std=0.0))
        low, high = (head, high) if float(kept.float().median()) > goal else (low, head)
    return (low + high) / 2


def num_kept(rows: Tensor) -> Tensor:
    """[N] int64, tokens that top-p 0.95 keeps at temperature 0.7."""
    ordered = torch.softmax(rows / TEMPERATURE, dim=1).sort(dim=1, descending=True).values
    return (ordered.cumsum(dim=1) - ordered < TOP_P).sum(dim=1)


def drafted_rows(target_rows: Tensor, error: float, generator: torch.Generator) -> Tensor:
    """[N, V] float32 rows of a drafter whose logits are off by `error` (standard deviation) from the target's."""
    assert error >= 0 and math.isfinite(error)
    noise = torch.randn(target_rows.shape, generator=generator, device=target_rows.device)
    return noise.mul_(error).add_(target_rows)


def sampling_of(num_rows: int, temperature: float, truncation: Truncation, device: torch.device) -> Sampling:
    """Fields [num_rows]."""
    return Sampling.same_for_all(
        num_rows,
        temperature,
        top_k=TOP_K if truncation is Truncation.top_k else 0,
        top_p=TOP_P if truncation is Truncation.top_p else 1.0,
        min_p=MIN_P if truncation is Truncation.min_p else 0.0,
        device=device,
    )


def streams_of(num_rows: int, seed: int, device: torch.device) -> Streams:
    """Fields [num_rows]: a seed of its own for each request, anywhere in its text."""
    generator = torch.Generator(device).manual_seed(seed)
    return Streams(
        torch.randint(2**62, (num_rows,), generator=generator, device=device),
        torch.randint(8192, (num_rows,), generator=generator, device=device),
        torch.randint(4096, (num_rows,), generator=generator, device=device),
    )
