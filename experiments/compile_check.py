"""Compile every kernel of the sampling core for GPUs that need not be there, and refuse register spills.

    python -m experiments.compile_check

Prints registers, shared memory, stack and spills of every variant. Exit status 1 when one spills, or when a kernel of
the package is launched by none of the calls here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

import kernels
from harness.compile_check import CompiledVariant, compile_for, complaints, kernels_in, to_text
from kernels.contract import Draft, Sampling, Streams, Verification
from kernels.contract import VerificationMethod as Method
from kernels.coupled import coupled_draw
from kernels.draw import draw
from kernels.logprobs import logprobs
from kernels.new_row_stats import new_row_stats
from kernels.streams import Purpose
from kernels.verify import verify

Launch = tuple[str, Callable[[], Any]]
TARGETS = (90, 80, 100)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
VOCAB_SIZE, ODD_VOCAB_SIZE, LARGEST_VOCAB_SIZE, DRAFT_VOCAB_SIZE = 128_256, 128_255, 262_144, 32_000
NUM_REQUESTS, NUM_DRAFTS = 16, 3


def _sampling(num_requests: int, truncates: bool) -> Sampling:
    ones, zeros = torch.ones(num_requests), torch.zeros(num_requests)
    return Sampling(ones, zeros.long(), ones, zeros, truncates)


def _streams(num_requests: int) -> Streams:
    return Streams(*(torch.zeros(num_requests, dtype=torch.int64) for _ in range(3)))


def _map() -> Tensor:
    return torch.arange(DRAFT_VOCAB_SIZE)


def _verify(
    method: Method,
    dtype: torch.dtype,
    *,
    vocab_size: int = VOCAB_SIZE,
    num_drafts: int = NUM_DRAFTS,
    truncates: bool = False,
    one_hot: bool = False,
    small_vocabulary: bool = False,
    with_stats: bool = True,
    packed: bool = False,
    num_requests: int = NUM_REQUESTS,
) -> None:
    num_rows = num_requests * (num_drafts + 1) - int(packed)
    counts = torch.full((num_requests,), num_drafts)
    counts[-1] -= int(packed)
    size = (num_requests, num_drafts, DRAFT_VOCAB_SIZE if small_vocabulary else vocab_size)
    draft = Draft(
        torch.zeros(num_requests, num_drafts, dtype=torch.int64),
        counts,
        None if one_hot else torch.empty(size, dtype=dtype),
        None if one_hot else torch.arange(num_requests),
        _map() if small_vocabulary else None,
        new_row_stats(*size[:2]) if with_stats and not one_hot else None,
    )
    rule = Verification(method, synthetic_rates=tuple(0.5**place for place in range(num_drafts)))
    sampling = _sampling(num_requests, truncates)
    verify(torch.empty(num_rows, vocab_size, dtype=dtype), draft, sampling, rule, _streams(num_requests))


def _draw(dtype: torch.dtype, *, truncates: bool = False, small_vocabulary: bool = False) -> None:
    vocab_size, target_ids = (DRAFT_VOCAB_SIZE, _map()) if small_vocabulary else (VOCAB_SIZE, None)
    logits, stats = torch.empty(NUM_REQUESTS, vocab_size, dtype=dtype), new_row_stats(NUM_REQUESTS)
    sampling = _sampling(NUM_REQUESTS, truncates)
    draw(logits, sampling, _streams(NUM_REQUESTS), Purpose.draft, target_ids, stats)


def _coupled_draw(dtype: torch.dtype, *, truncates: bool = False, small_vocabulary: bool = False) -> None:
    vocab_size, target_ids = (DRAFT_VOCAB_SIZE, _map()) if small_vocabulary else (VOCAB_SIZE, None)
    logits, sampling = torch.empty(NUM_REQUESTS, vocab_size, dtype=dtype), _sampling(NUM_REQUESTS, truncates)
    coupled_draw(logits, sampling, _streams(NUM_REQUESTS), VOCAB_SIZE, target_ids)


def _logprobs(dtype: torch.dtype, *, sampling: bool = False, truncates: bool = False) -> None:
    logits, token_ids = torch.empty(NUM_REQUESTS, VOCAB_SIZE, dtype=dtype), torch.zeros(NUM_REQUESTS, dtype=torch.int64)
    logprobs(logits, token_ids, 5, _sampling(NUM_REQUESTS, truncates) if sampling else None)


def every_method(dtype: torch.dtype) -> Iterator[Launch]:
    """Every method and every entry of the core, on batches that cut nothing."""
    name = str(dtype).removeprefix("torch.")
    for method in Method:
        yield f"verify {method.value}, {name}", partial(_verify, method, dtype)
    yield f"draw, {name}", partial(_draw, dtype)
    yield f"coupled draw, {name}", partial(_coupled_draw, dtype)
    yield f"logprobs, {name}", partial(_logprobs, dtype)


def truncated(dtype: torch.dtype, methods: Iterable[Method]) -> Iterator[Launch]:
    """The same on batches that may cut."""
    for method in methods:
        yield f"verify {method.value}, truncated", partial(_verify, method, dtype, truncates=True)
    yield "draw, truncated", partial(_draw, dtype, truncates=True)
    yield "coupled draw, truncated", partial(_coupled_draw, dtype, truncates=True)
    yield "logprobs, truncated", partial(_logprobs, dtype, sampling=True, truncates=True)


def other_shapes(dtype: torch.dtype) -> Iterator[Launch]:
    """Vocabularies, layouts and drafts that change the code of a kernel."""
    options: dict[str, dict[str, Any]] = {
        "smaller draft vocabulary": {"small_vocabulary": True, "truncates": True},
        "one-hot drafts": {"one_hot": True},
        "no statistics, packed rows": {"with_stats": False, "packed": True},
        "odd vocabulary": {"vocab_size": ODD_VOCAB_SIZE},
        "many requests": {"num_requests": 100, "vocab_size": ODD_VOCAB_SIZE + 1},
        "largest vocabulary, 8 drafts": {"vocab_size": LARGEST_VOCAB_SIZE, "num_drafts": 8},
    }
    for method in (Method.probabilistic, Method.block):
        for words, chosen in options.items():
            yield f"verify {method.value}, {words}", partial(_verify, method, dtype, **chosen)
    yield "draw, smaller vocabulary", partial(_draw, dtype, small_vocabulary=True)
    yield "coupled draw, smaller vocabulary", partial(_coupled_draw, dtype, small_vocabulary=True)
    yield "logprobs, processed", partial(_logprobs, dtype, sampling=True)


def launches(target: int) -> Iterator[Launch]:
    """The calls whose kernels are compiled: everything for the first target, the kinds of kernels for the others."""
    bfloat16 = DTYPES[0]
    if target != TARGETS[0]:
        yield from every_method(bfloat16)
        yield from truncated(bfloat16, (Method.block,))
        return
    for dtype in DTYPES:
        yield from every_method(dtype)
    yield from truncated(bfloat16, Method)
    yield from other_shapes(bfloat16)


def main() -> int:
    found: list[CompiledVariant] = []
    wrong: list[str] = []
    for target in TARGETS:
        variants = compile_for(target, launches(target))
        found += variants
        wrong += complaints(target, variants, kernels_in(kernels))
    print(to_text(found))
    print(f"\n{len(found)} variants of {len({item.kernel for item in found})} kernels compiled")
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
