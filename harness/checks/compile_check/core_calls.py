"""Calls of the sampling core whose kernels are compiled: every method, and what changes the code of a kernel.

This module does not know for which GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from harness.engine.compile_ahead.compile import Launch
from harness.engine.slots import MAX_ENDING_TOKENS
from kernels.commit import commit
from kernels.contract import (
    Draft,
    RowStats,
    Sampling,
    Slots,
    Streams,
    TokenMask,
    VerificationResult,
)
from kernels.contract import VerificationMethod as Method
from kernels.defer import defer
from kernels.draw import coupled_draw, draw
from kernels.logprobs import logprobs
from kernels.random.streams import Purpose
from kernels.verification import probe
from kernels.verify import verify

VOCAB_SIZE, ODD_VOCAB_SIZE, LARGEST_VOCAB_SIZE, DRAFT_VOCAB_SIZE = 128_256, 128_255, 262_144, 32_000
TOY_VOCAB_SIZE, SHORT_VOCAB_SIZE, ALIGNED_SHORT_VOCAB_SIZE = 8, 200, 256
"""Rows of one short chunk, the last read 16 bytes at a time; where they may be cut the last two take four warps."""
NUM_REQUESTS, NUM_DRAFTS = 16, 3
CAPACITY = 2048
"""Positions of a slot."""
FEW_REQUESTS, SOME_REQUESTS, MANY_LATE_REQUESTS, MORE_REQUESTS = 4, 8, 32, 48
"""So few that the deciding pass runs, with two warps for a chunk; with one; with 8 warps and room for two programs; so
many that the second pass runs instead, with 4 warps."""
MANY_REQUESTS = 300
"""So many that a program of the first pass reads two sets of chunks, and one of the second has 8 warps."""


def sampling_of(num_requests: int, truncates: bool, is_mixed: bool = False) -> Sampling:
    """Of requests that cut or not."""
    ones, zeros = torch.ones(num_requests), torch.zeros(num_requests)
    return Sampling(ones, zeros.long(), ones, zeros, truncates, is_mixed)


def streams_of(num_requests: int) -> Streams:
    """Fields [R]."""
    return Streams(*(torch.zeros(num_requests, dtype=torch.int64) for _ in range(3)))


def mask_of(masked: bool, vocab_size: int, *size: int) -> TokenMask | None:
    """A mask for rows of this size, if there is to be one."""
    words = torch.zeros(NUM_REQUESTS, -(-vocab_size // 32), dtype=torch.int32)
    return TokenMask(words, torch.zeros(size, dtype=torch.int64)) if masked else None


def _map() -> Tensor:
    return torch.arange(DRAFT_VOCAB_SIZE)


def _verify(
    method: Method,
    dtype: torch.dtype,
    *,
    vocab_size: int = VOCAB_SIZE,
    num_drafts: int = NUM_DRAFTS,
    truncates: bool = False,
    is_mixed: bool = False,
    one_hot: bool = False,
    small_vocabulary: bool = False,
    with_stats: bool = True,
    packed: bool = False,
    masked: bool = False,
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
        RowStats.empty(*size[:2]) if with_stats and not one_hot else None,
        mask_of(masked and not one_hot, vocab_size, *size[:2]),
    )
    rule = probe(method, num_drafts)
    sampling = sampling_of(num_requests, truncates, is_mixed)
    logits, mask = torch.empty(num_rows, vocab_size, dtype=dtype), mask_of(masked, vocab_size, num_rows)
    verify(logits, draft, sampling, rule, streams_of(num_requests), mask=mask)


def _draw(
    dtype: torch.dtype,
    *,
    vocab_size: int = VOCAB_SIZE,
    truncates: bool = False,
    is_mixed: bool = False,
    small_vocabulary: bool = False,
    masked: bool = False,
    num_requests: int = NUM_REQUESTS,
) -> None:
    mask = mask_of(masked, vocab_size, num_requests)
    vocab_size, target_ids = (DRAFT_VOCAB_SIZE, _map()) if small_vocabulary else (vocab_size, None)
    logits, stats = torch.empty(num_requests, vocab_size, dtype=dtype), RowStats.empty(num_requests)
    sampling = sampling_of(num_requests, truncates, is_mixed)
    draw(logits, sampling, streams_of(num_requests), Purpose.draft, target_ids, stats, mask=mask)


def _defer(num_drafts: int, *, defers: bool = True) -> None:
    ones = torch.ones(NUM_REQUESTS, dtype=torch.int64)
    drafts, tokens, endings = (
        torch.zeros(NUM_REQUESTS, size, dtype=torch.int64) for size in (num_drafts, CAPACITY, MAX_ENDING_TOKENS)
    )
    defer(ones, num_drafts * ones, drafts, tokens, ones, endings if defers else None)


def _commit(num_drafts: int, *, keeps: bool) -> None:
    ones, tokens, drafts = (
        torch.zeros(NUM_REQUESTS, *size, dtype=torch.int64) for size in ((), (num_drafts + 1,), (num_drafts,))
    )
    slots = Slots(torch.zeros(NUM_REQUESTS + 1, CAPACITY, dtype=torch.int64), ones, ones, NUM_REQUESTS)
    commit(VerificationResult(tokens, ones, ones > 0), drafts, ones, slots if keeps else None)


def _coupled_draw(
    dtype: torch.dtype,
    *,
    truncates: bool = False,
    is_mixed: bool = False,
    small_vocabulary: bool = False,
    masked: bool = False,
) -> None:
    vocab_size, target_ids = (DRAFT_VOCAB_SIZE, _map()) if small_vocabulary else (VOCAB_SIZE, None)
    logits, sampling = (
        torch.empty(NUM_REQUESTS, vocab_size, dtype=dtype),
        sampling_of(NUM_REQUESTS, truncates, is_mixed),
    )
    mask = mask_of(masked, VOCAB_SIZE, NUM_REQUESTS)
    coupled_draw(logits, sampling, streams_of(NUM_REQUESTS), VOCAB_SIZE, target_ids, mask=mask)


def _logprobs(
    dtype: torch.dtype,
    *,
    sampling: bool = False,
    truncates: bool = False,
    is_mixed: bool = False,
    masked: bool = False,
) -> None:
    logits, token_ids = torch.empty(NUM_REQUESTS, VOCAB_SIZE, dtype=dtype), torch.zeros(NUM_REQUESTS, dtype=torch.int64)
    mask = mask_of(masked, VOCAB_SIZE, NUM_REQUESTS)
    logprobs(logits, token_ids, 5, sampling_of(NUM_REQUESTS, truncates, is_mixed) if sampling else None, mask)


def every_method(dtype: torch.dtype) -> Iterator[Launch]:
    """Every method and every entry of the core, on batches that cut nothing."""
    name = str(dtype).removeprefix("torch.")
    for method in Method:
        yield f"verify {method.value}, {name}", partial(_verify, method, dtype)
    yield f"draw, {name}", partial(_draw, dtype)
    yield f"coupled draw, {name}", partial(_coupled_draw, dtype)
    yield f"logprobs, {name}", partial(_logprobs, dtype)


def packed(dtype: torch.dtype) -> Iterator[Launch]:
    """Target rows that must be placed first."""
    yield "verify strict, packed rows", partial(_verify, Method.strict, dtype, packed=True)


def bookkeeping() -> Iterator[Launch]:
    """With and without drafts, with and without rows that may be deferred, and slots that take in what was decided."""
    for num_drafts, words in ((0, "no drafts"), (NUM_DRAFTS, f"{NUM_DRAFTS} drafts")):
        yield f"defer, {words}", partial(_defer, num_drafts)
        yield f"defer none, {words}", partial(_defer, num_drafts, defers=False)
        yield f"commit, {words}", partial(_commit, num_drafts, keeps=True)
        yield f"pack what may be cut, {words}", partial(_commit, num_drafts, keeps=False)


def truncated(dtype: torch.dtype, methods: Iterable[Method]) -> Iterator[Launch]:
    """The same on batches that may cut, and on those of which some requests do."""
    for words, is_mixed in {"truncated": False, "mixed": True}.items():
        chosen = {"truncates": True, "is_mixed": is_mixed}
        for method in methods:
            yield f"verify {method.value}, {words}", partial(_verify, method, dtype, **chosen)
        yield f"draw, {words}", partial(_draw, dtype, **chosen)
        yield f"coupled draw, {words}", partial(_coupled_draw, dtype, **chosen)
        yield f"logprobs, {words}", partial(_logprobs, dtype, sampling=True, **chosen)


def odd_rows(dtype: torch.dtype) -> Iterator[Launch]:
    """Rows that begin anywhere, and are put together from words."""
    name = f"odd rows, {str(dtype).removeprefix('torch.')}"
    for method in (Method.probabilistic, Method.block):
        yield f"verify {method.value}, {name}", partial(_verify, method, dtype, vocab_size=ODD_VOCAB_SIZE)
    truncated = partial(_verify, Method.block, dtype, vocab_size=ODD_VOCAB_SIZE, truncates=True)
    yield f"verify block, truncated, {name}", truncated
    many = partial(_verify, Method.probabilistic, dtype, vocab_size=ODD_VOCAB_SIZE, num_requests=MANY_REQUESTS)
    yield f"verify probabilistic, many requests, {name}", many
    others: dict[str, dict[str, Any]] = {"no statistics": {"with_stats": False}, "one-hot drafts": {"one_hot": True}}
    for words, chosen in (others | {"smaller draft vocabulary": {"small_vocabulary": True}}).items():
        for method in (Method.probabilistic, Method.block):
            call = partial(_verify, method, dtype, vocab_size=ODD_VOCAB_SIZE, **chosen)
            yield f"verify {method.value}, {words}, {name}", call
    for method in (Method.coupled, Method.typical, Method.fly):
        yield f"verify {method.value}, {name}", partial(_verify, method, dtype, vocab_size=ODD_VOCAB_SIZE)
    yield f"draw, {name}", partial(_draw, dtype, vocab_size=ODD_VOCAB_SIZE)


def other_shapes(dtype: torch.dtype) -> Iterator[Launch]:
    """Vocabularies, layouts and drafts that change the code of a kernel."""
    options: dict[str, dict[str, Any]] = {
        "smaller draft vocabulary": {"small_vocabulary": True, "truncates": True},
        "one-hot drafts": {"one_hot": True},
        "no statistics, packed rows": {"with_stats": False, "packed": True},
        "odd vocabulary": {"vocab_size": ODD_VOCAB_SIZE},
        "toy vocabulary": {"vocab_size": TOY_VOCAB_SIZE},
        "toy vocabulary, truncated": {"vocab_size": TOY_VOCAB_SIZE, "truncates": True},
        "aligned short vocabulary": {"vocab_size": ALIGNED_SHORT_VOCAB_SIZE},
        "few requests": {"num_requests": FEW_REQUESTS},
        "few requests, odd vocabulary": {"num_requests": FEW_REQUESTS, "vocab_size": ODD_VOCAB_SIZE},
        "some requests": {"num_requests": SOME_REQUESTS},
        "most that are decided late": {"num_requests": MANY_LATE_REQUESTS},
        "more requests": {"num_requests": MORE_REQUESTS},
        "more requests, odd vocabulary": {"num_requests": MORE_REQUESTS, "vocab_size": ODD_VOCAB_SIZE},
        "many requests": {"num_requests": MANY_REQUESTS},
        "many requests, no statistics": {"num_requests": MANY_REQUESTS, "with_stats": False},
        "many requests, truncated": {"num_requests": MANY_REQUESTS, "truncates": True},
        "largest vocabulary, 8 drafts": {"vocab_size": LARGEST_VOCAB_SIZE, "num_drafts": 8},
    }
    for method in (Method.probabilistic, Method.block, Method.strict):
        for words, chosen in options.items():
            yield f"verify {method.value}, {words}", partial(_verify, method, dtype, **chosen)
    short: dict[str, Any] = {"vocab_size": SHORT_VOCAB_SIZE, "truncates": True}
    for method in (Method.block, Method.coupled):
        yield f"verify {method.value}, short vocabulary, truncated", partial(_verify, method, dtype, **short)
        name = f"verify {method.value}, masked, short vocabulary, truncated"
        yield name, partial(_verify, method, dtype, masked=True, **short)
    yield "verify coupled, many requests", partial(_verify, Method.coupled, dtype, num_requests=MANY_REQUESTS)
    yield "verify pr35461, many requests", partial(_verify, Method.pr35461, dtype, num_requests=MANY_REQUESTS)
    yield "draw, odd vocabulary", partial(_draw, dtype, vocab_size=ODD_VOCAB_SIZE)
    yield "draw, many requests", partial(_draw, dtype, num_requests=2 * MANY_REQUESTS)
    yield "draw, smaller vocabulary", partial(_draw, dtype, small_vocabulary=True)
    yield "coupled draw, smaller vocabulary", partial(_coupled_draw, dtype, small_vocabulary=True)
    yield "logprobs, processed", partial(_logprobs, dtype, sampling=True)


MASKED = {"masked": (False, False), "masked and truncated": (True, False), "masked and mixed": (True, True)}
"""Batches with masks: whether one may cut, and whether only some of its requests do."""


def masked(dtype: torch.dtype, methods: Iterable[Method], batches: Iterable[str] = tuple(MASKED)) -> Iterator[Launch]:
    """Rows with masks, in batches that MASKED names."""
    name = str(dtype).removeprefix("torch.")
    for words in batches:
        truncates, is_mixed = MASKED[words]
        chosen = {"masked": True, "truncates": truncates, "is_mixed": is_mixed}
        for method in methods:
            yield f"verify {method.value}, {words}, {name}", partial(_verify, method, dtype, **chosen)
        for small in (False, True):
            vocabulary = ", smaller vocabulary" if small else ""
            yield f"draw, {words}, {name}{vocabulary}", partial(_draw, dtype, small_vocabulary=small, **chosen)
            yield (
                f"coupled draw, {words}, {name}{vocabulary}",
                partial(_coupled_draw, dtype, small_vocabulary=small, **chosen),
            )
        yield f"logprobs, {words}, {name}", partial(_logprobs, dtype, sampling=True, **chosen)


def other_masked_shapes(dtype: torch.dtype) -> Iterator[Launch]:
    """Vocabularies, layouts and drafts that change the code of a kernel with masks."""
    options: dict[str, dict[str, Any]] = {
        "one-hot drafts": {"one_hot": True},
        "smaller vocabulary, no statistics, packed rows": {
            "small_vocabulary": True,
            "with_stats": False,
            "packed": True,
        },
        "odd vocabulary": {"vocab_size": ODD_VOCAB_SIZE},
        "many requests": {"num_requests": MANY_REQUESTS},
        "many requests, truncated": {"num_requests": MANY_REQUESTS, "truncates": True},
        "largest vocabulary, 8 drafts": {"vocab_size": LARGEST_VOCAB_SIZE, "num_drafts": 8},
    }
    for method in (Method.probabilistic, Method.block):
        for words, chosen in options.items():
            yield f"verify {method.value}, masked, {words}", partial(_verify, method, dtype, masked=True, **chosen)
    yield "draw, masked, many requests", partial(_draw, dtype, masked=True, num_requests=2 * MANY_REQUESTS)
