"""Calls of the sampling core whose kernels are compiled: every method, and what changes the code of a kernel.

This module does not know for which GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from harness.checks.compile_check.compiled import Launch
from kernels.contract import (
    Draft,
    LogitEdits,
    RowStats,
    Sampling,
    SiblingDraws,
    Streams,
    Texts,
    TokenMask,
    TokenTally,
)
from kernels.contract import VerificationMethod as Method
from kernels.draw import coupled_draw, draw
from kernels.edit_logits import edit_logits
from kernels.logprobs import logprobs
from kernels.methods import Method as AnyMethod
from kernels.methods import TreeMethod
from kernels.random.streams import Purpose
from kernels.verification import probe
from kernels.verify import verify

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
VOCAB_SIZE, ODD_VOCAB_SIZE, LARGEST_VOCAB_SIZE, DRAFT_VOCAB_SIZE = 128_256, 128_255, 262_144, 32_000
TOY_VOCAB_SIZE, SHORT_VOCAB_SIZE, ALIGNED_SHORT_VOCAB_SIZE = 8, 200, 256
"""Rows of one short chunk, the last read 16 bytes at a time; where they may be cut the last two take four warps."""
NUM_REQUESTS, NUM_DRAFTS, NUM_NODES = 16, 3, 32
CAPACITY = 2048
"""Positions of a slot."""
NUM_FIXED = 4
"""Tokens of a request that have a bias or end it."""
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
    method: AnyMethod,
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
    siblings: SiblingDraws | None = None,
) -> None:
    """A verification of chains, or with siblings of trees."""
    rule = probe(method, num_drafts if siblings is None else 1)
    num_drafts = num_drafts if siblings is None else NUM_NODES
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
        parents=None if siblings is None else torch.zeros(size[:2], dtype=torch.int64),
        siblings=siblings or SiblingDraws.distinct,
    )
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


def _edit_logits(num_drafts: int, dtype: torch.dtype, *, of_trees: bool = False) -> None:
    ones, floats = torch.ones(NUM_REQUESTS, dtype=torch.int64), torch.ones(NUM_REQUESTS)
    fixed = torch.zeros(NUM_REQUESTS, NUM_FIXED, dtype=torch.int32)
    edits = LogitEdits(floats, floats, floats, ones, fixed, fixed.float(), fixed.bool())
    drafts = torch.zeros(NUM_REQUESTS, num_drafts, dtype=torch.int64)
    texts = Texts(torch.zeros(NUM_REQUESTS, CAPACITY, dtype=torch.int64), ones, ones)
    tally = TokenTally.empty(NUM_REQUESTS, NUM_FIXED + CAPACITY + num_drafts)
    logits = torch.empty(NUM_REQUESTS * (num_drafts + 1), VOCAB_SIZE, dtype=dtype)
    edit_logits(logits, drafts, ones, texts, edits, tally, drafts if of_trees else None)


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


ODD: dict[str, Any] = {"vocab_size": ODD_VOCAB_SIZE}
CUTS: dict[str, Any] = {"truncates": True}
MASKS: dict[str, Any] = {"masked": True}
MIXED: dict[str, Any] = {"truncates": True, "is_mixed": True}
SHORT: dict[str, Any] = {"vocab_size": SHORT_VOCAB_SIZE, "truncates": True}
Batches = dict[str, dict[str, Any]]
"""Words of a name -> what sets a verification apart."""
ODD_ROWS: Batches = {
    "odd rows": ODD,
    "no statistics, odd rows": ODD | {"with_stats": False},
    "one-hot drafts, odd rows": ODD | {"one_hot": True},
    "smaller draft vocabulary, odd rows": ODD | {"small_vocabulary": True},
}
SHAPES: Batches = {
    "smaller draft vocabulary": CUTS | {"small_vocabulary": True},
    "one-hot drafts": {"one_hot": True},
    "no statistics, packed rows": {"with_stats": False, "packed": True},
    "odd vocabulary": ODD,
    "toy vocabulary": {"vocab_size": TOY_VOCAB_SIZE},
    "toy vocabulary, truncated": CUTS | {"vocab_size": TOY_VOCAB_SIZE},
    "aligned short vocabulary": {"vocab_size": ALIGNED_SHORT_VOCAB_SIZE},
    "few requests": {"num_requests": FEW_REQUESTS},
    "few requests, odd vocabulary": ODD | {"num_requests": FEW_REQUESTS},
    "some requests": {"num_requests": SOME_REQUESTS},
    "most that are decided late": {"num_requests": MANY_LATE_REQUESTS},
    "more requests": {"num_requests": MORE_REQUESTS},
    "more requests, odd vocabulary": ODD | {"num_requests": MORE_REQUESTS},
    "many requests": {"num_requests": MANY_REQUESTS},
    "many requests, no statistics": {"num_requests": MANY_REQUESTS, "with_stats": False},
    "many requests, truncated": CUTS | {"num_requests": MANY_REQUESTS},
    "largest vocabulary, 8 drafts": {"vocab_size": LARGEST_VOCAB_SIZE, "num_drafts": 8},
}
SHORT_ROWS: Batches = {
    "short vocabulary, truncated": SHORT,
    "masked, short vocabulary, truncated": SHORT | MASKS,
}
MASKED_SHAPES: Batches = {
    "masked, one-hot drafts": MASKS | {"one_hot": True},
    "masked, smaller vocabulary, no statistics, packed rows": MASKS
    | {"small_vocabulary": True, "with_stats": False, "packed": True},
    "masked, odd vocabulary": MASKS | ODD,
    "masked, many requests": MASKS | {"num_requests": MANY_REQUESTS},
    "masked, many requests, truncated": MASKS | CUTS | {"num_requests": MANY_REQUESTS},
    "masked, largest vocabulary, 8 drafts": MASKS | {"vocab_size": LARGEST_VOCAB_SIZE, "num_drafts": 8},
}
BATCHES: Batches = {
    "truncated": CUTS,
    "mixed": MIXED,
    "masked": MASKS,
    "masked and truncated": CUTS | MASKS,
    "masked and mixed": MIXED | MASKS,
}
"""Whether requests may cut, all of them or some, and whether rows have masks."""


def name_of(dtype: torch.dtype) -> str:
    """As torch calls it."""
    return str(dtype).removeprefix("torch.")


def verifications(
    method: AnyMethod, dtype: torch.dtype, batches: Batches, *words: str, siblings: SiblingDraws | None = None
) -> Iterator[Launch]:
    """Verifications of batches of chains, or with siblings of trees; `words` stand at the end of their names."""
    # of chains and of trees
    is_both = siblings is not None and not isinstance(method, TreeMethod)
    called = f"{method.value} trees" if is_both else method.value
    for batch, chosen in batches.items():
        name = ", ".join(word for word in (called, batch, *words) if word)
        yield f"verify {name}", partial(_verify, method, dtype, **chosen, siblings=siblings)


def every_method(dtype: torch.dtype) -> Iterator[Launch]:
    """Every method and every entry of the core, on batches that cut nothing."""
    name = name_of(dtype)
    for method in Method:
        yield from verifications(method, dtype, {"": {}}, name)
    yield f"draw, {name}", partial(_draw, dtype)
    yield f"coupled draw, {name}", partial(_coupled_draw, dtype)
    yield f"logprobs, {name}", partial(_logprobs, dtype)
    yield f"edit logits, {name}", partial(_edit_logits, NUM_DRAFTS, dtype)


def packed(dtype: torch.dtype) -> Iterator[Launch]:
    """Target rows that must be placed first."""
    yield "verify strict, packed rows", partial(_verify, Method.strict, dtype, packed=True)


def edits(dtype: torch.dtype) -> Iterator[Launch]:
    """Edits of target rows without drafts, and along trees."""
    yield "edit logits, no drafts", partial(_edit_logits, 0, dtype)
    yield "edit logits, trees", partial(_edit_logits, NUM_NODES, dtype, of_trees=True)


def truncated(dtype: torch.dtype, methods: Iterable[Method]) -> Iterator[Launch]:
    """The same on batches that may cut, and on those of which some requests do."""
    for words in ("truncated", "mixed"):
        for method in methods:
            yield from verifications(method, dtype, {words: BATCHES[words]})
        yield f"draw, {words}", partial(_draw, dtype, **BATCHES[words])
        yield f"coupled draw, {words}", partial(_coupled_draw, dtype, **BATCHES[words])
        yield f"logprobs, {words}", partial(_logprobs, dtype, sampling=True, **BATCHES[words])


def odd_rows(dtype: torch.dtype) -> Iterator[Launch]:
    """Rows that begin anywhere, and are put together from words."""
    name = name_of(dtype)
    for method in (Method.probabilistic, Method.block):
        yield from verifications(method, dtype, ODD_ROWS, name)
    for method in (Method.coupled, Method.typical, Method.fly):
        yield from verifications(method, dtype, {"odd rows": ODD_ROWS["odd rows"]}, name)
    yield from verifications(Method.block, dtype, {"truncated, odd rows": ODD | CUTS}, name)
    many = {"many requests, odd rows": ODD | {"num_requests": MANY_REQUESTS}}
    yield from verifications(Method.probabilistic, dtype, many, name)
    yield f"draw, odd rows, {name}", partial(_draw, dtype, **ODD)


def other_shapes(dtype: torch.dtype) -> Iterator[Launch]:
    """Vocabularies, layouts and drafts that change the code of a kernel."""
    for method in (Method.probabilistic, Method.block, Method.strict):
        yield from verifications(method, dtype, SHAPES)
    for method in (Method.block, Method.coupled):
        yield from verifications(method, dtype, SHORT_ROWS)
    for method in (Method.coupled, Method.pr35461):
        yield from verifications(method, dtype, {"many requests": SHAPES["many requests"]})
    yield "draw, odd vocabulary", partial(_draw, dtype, **ODD)
    yield "draw, many requests", partial(_draw, dtype, num_requests=2 * MANY_REQUESTS)
    yield "draw, smaller vocabulary", partial(_draw, dtype, small_vocabulary=True)
    yield "coupled draw, smaller vocabulary", partial(_coupled_draw, dtype, small_vocabulary=True)
    yield "logprobs, processed", partial(_logprobs, dtype, sampling=True)


MASKED = ("masked", "masked and truncated", "masked and mixed")


def masked(dtype: torch.dtype, methods: Iterable[Method], batches: Iterable[str] = MASKED) -> Iterator[Launch]:
    """Rows with masks, in batches that MASKED names."""
    name = name_of(dtype)
    for words in batches:
        chosen = BATCHES[words]
        for method in methods:
            yield from verifications(method, dtype, {words: chosen}, name)
        for small in (False, True):
            end = f"{words}, {name}{', smaller vocabulary' if small else ''}"
            yield f"draw, {end}", partial(_draw, dtype, small_vocabulary=small, **chosen)
            yield f"coupled draw, {end}", partial(_coupled_draw, dtype, small_vocabulary=small, **chosen)
        yield f"logprobs, {words}, {name}", partial(_logprobs, dtype, sampling=True, **chosen)


def other_masked_shapes(dtype: torch.dtype) -> Iterator[Launch]:
    """Vocabularies, layouts and drafts that change the code of a kernel with masks."""
    for method in (Method.probabilistic, Method.block):
        yield from verifications(method, dtype, MASKED_SHAPES)
    yield "draw, masked, many requests", partial(_draw, dtype, masked=True, num_requests=2 * MANY_REQUESTS)


def of_method(method: AnyMethod) -> Iterator[Launch]:
    """All that a method changes, of drafts in chains: what other methods share with it is left out."""
    for dtype in DTYPES:
        yield from verifications(method, dtype, {"": {}}, name_of(dtype))
        yield from verifications(method, dtype, ODD_ROWS, name_of(dtype))
    yield from verifications(method, torch.bfloat16, BATCHES | SHAPES | SHORT_ROWS | MASKED_SHAPES)
