"""Log-probabilities of output tokens, with the best alternatives. Twin of kernels.reference.logprobs.

One program per row. It reads the row once, in chunks of CHUNK tokens, and keeps of each chunk the largest logit, its
first token and the sum of exponentials. The alternatives then come one by one: the best of all chunks' best, and only
the chunk it was taken from is read again for its next best. So n alternatives cost n chunks, and nothing is sorted.

Shapes: N rows, V the vocabulary, n alternatives.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .checks import check_logits
from .contract import RowStats, Sampling, Streams, TokenMask
from .draw import draw
from .launch.workspace import CHUNK, Workspace
from .random.streams import Purpose
from .reference.logprobs import TopLogprobs, check_processed
from .rows.softmax_weights import GROUP, divisor, scale, weigh
from .rows.token_mask import GROUP_BITS, allowed_logit, mask_row, mask_rows, only_allowed

CHUNKS_PER_STEP = 4
"""Chunks that are read at a time."""
NO_TOKEN: tl.constexpr = tl.constexpr(2**30)
"""In the place of a token where a chunk has none left; beyond any vocabulary, so that the lowest id is never it."""


@triton.jit
def _cut(values, offsets, threshold, certain):
    """Logits, -inf where below a threshold; of a row that is certain 0 at that token and -inf elsewhere."""
    # Written so that a NaN survives and is found.
    values = tl.where(values < threshold, -float("inf"), values)
    return tl.where(certain < 0, values, tl.where(offsets == certain, 0.0, -float("inf")))


@triton.jit
def _survivors(row_logits, offsets, vocab_size, mask, threshold, certain):
    """float32 logits of the tokens at `offsets`, -inf where cut; a row that is certain has 0 there and -inf elsewhere.

    Args:
        mask: as for kernels.rows.token_mask.allows.
        certain: int32, the token that has all the mass; vocab_size for none; -1 where the logits decide.
    """
    values = tl.load(row_logits + offsets, mask=offsets < vocab_size, other=-float("inf")).to(tl.float32)
    GROUP: tl.constexpr = GROUP_BITS // row_logits.dtype.element_ty.primitive_bitwidth
    return _cut(only_allowed(values, offsets, vocab_size, mask, GROUP), offsets, threshold, certain)


@triton.jit
def _survey(
    row_logits, vocab_size, mask, threshold, temperature, token_value, STEPS: tl.constexpr, CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """Of each chunk, [STEPS, CHUNKS]: largest survivor, its first token, sum of weights; and the number of survivors
    above `token_value`."""
    steps = tl.arange(0, STEPS)[:, None]
    best = tl.full((STEPS, CHUNKS), -float("inf"), tl.float32)
    token_ids = tl.full((STEPS, CHUNKS), NO_TOKEN, tl.int32)
    sums = tl.full((STEPS, CHUNKS), 0.0, tl.float64)
    num_larger = tl.full((), 0, tl.int32)
    high, low = scale(temperature)
    for step in range(tl.cdiv(vocab_size, CHUNKS * CHUNK)):
        offsets = (step * CHUNKS + tl.arange(0, CHUNKS))[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
        values = _survivors(row_logits, offsets, vocab_size, mask, threshold, -1)
        maximum = tl.max(values, axis=1)
        first = tl.min(tl.where(values == maximum[:, None], offsets, NO_TOKEN), axis=1)
        first = tl.where(first < vocab_size, first, NO_TOKEN)
        # A chunk of -inf has weight 0; -inf minus -inf would be NaN.
        weights = weigh(values, tl.where(maximum == -float("inf"), 0.0, maximum)[:, None], high, low)
        here = steps == step
        best = tl.where(here, maximum[None, :], best)
        token_ids = tl.where(here, first[None, :], token_ids)
        partial = tl.sum(tl.reshape(weights, (CHUNKS, CHUNK // GROUP, GROUP)), axis=2)
        sums = tl.where(here, tl.sum(partial.to(tl.float64), axis=1)[None, :], sums)
        num_larger += tl.sum((values > token_value).to(tl.int32))
    return best, token_ids, sums, num_larger


@triton.jit
def _logprobs_kernel(
    logits,  # [N, V]
    stride,
    vocab_size,
    temperatures,  # [N] float32, None for the raw distribution
    thresholds,  # [N] float32, None when nothing is cut
    masks,  # MaskRows
    token_ids,  # [N] int64
    num_top,  # n
    token_logprobs,  # [N] float32
    top_token_ids,  # [N, n] int64
    top_logprobs,  # [N, n] float32
    ranks,  # [N] int64
    STEPS: tl.constexpr,
    CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    row_logits = logits + row * stride
    token = tl.load(token_ids + row)
    token = tl.where(token < 0, vocab_size, token)
    temperature = tl.full((), 1.0, tl.float32)
    if temperatures is not None:
        temperature = tl.load(temperatures + row)
    threshold = tl.full((), -float("inf"), tl.float32)
    if thresholds is not None:
        threshold = tl.load(thresholds + row)
    mask = (masks.words, masks.stride, masks.num_words, masks.token_ids, mask_row(masks.rows, row, True))
    token_value = tl.load(row_logits + token, mask=token < vocab_size, other=-float("inf")).to(tl.float32)
    token_value = _cut(allowed_logit(token_value, token, token < vocab_size, mask), token, threshold, -1)
    best, best_ids, sums, num_larger = _survey(
        row_logits, vocab_size, mask, threshold, temperature, token_value, STEPS, CHUNKS, CHUNK
    )
    maximum = tl.max(best)
    # NaN and +inf have left a NaN in the sums; a row of -inf has -inf minus -inf here.
    normalizer = tl.sum(sums * tl.exp((best - maximum).to(tl.float64) / divisor(temperature)))
    invalid = normalizer != normalizer
    certain = tl.full((), -1, tl.int32)
    if temperature == 0:
        certain = tl.min(tl.where(best == maximum, best_ids, NO_TOKEN))
    without = tl.full((), 0, tl.int32)
    if temperatures is None:
        without += vocab_size
    certain = tl.where(invalid, without, certain)
    if certain >= 0:
        starts = (tl.arange(0, STEPS)[:, None] * CHUNKS + tl.arange(0, CHUNKS)[None, :]) * CHUNK
        holds = (certain >= starts) & (certain < starts + CHUNK) & (certain < vocab_size)
        best = tl.where(holds, 0.0, -float("inf"))
        best_ids = tl.where(holds, certain, tl.where(starts < vocab_size, starts, NO_TOKEN))
        token_value = tl.where(token == certain, 0.0, -float("inf"))
        num_larger = ((token != certain) & (certain < vocab_size)).to(tl.int32)
        maximum = tl.full((), 0.0, tl.float32)
        normalizer = tl.where(certain == vocab_size, float("nan"), 1.0).to(tl.float64)

    log_normalizer = tl.log(normalizer)
    token_logprob = (token_value - maximum).to(tl.float64) / divisor(temperature) - log_normalizer
    tl.store(token_logprobs + row, token_logprob.to(tl.float32))
    tl.store(ranks + row, (1 + num_larger).to(tl.int64))

    chunks = tl.arange(0, STEPS)[:, None] * CHUNKS + tl.arange(0, CHUNKS)[None, :]
    for place in range(num_top):
        value = tl.max(best)
        chosen = tl.min(tl.where(best == value, best_ids, NO_TOKEN))
        logprob = (value - maximum).to(tl.float64) / divisor(temperature) - log_normalizer
        tl.store(top_token_ids + row * num_top + place, chosen.to(tl.int64))
        tl.store(top_logprobs + row * num_top + place, logprob.to(tl.float32))
        offsets = chosen // CHUNK * CHUNK + tl.arange(0, CHUNK)
        values = _survivors(row_logits, offsets, vocab_size, mask, threshold, certain)
        behind = ((values < value) | ((values == value) & (offsets > chosen))) & (offsets < vocab_size)
        next_value = tl.max(tl.where(behind, values, -float("inf")))
        next_id = tl.min(tl.where(behind & (values == next_value), offsets, NO_TOKEN))
        emptied = chunks == chosen // CHUNK
        best = tl.where(emptied, next_value, best)
        best_ids = tl.where(emptied, next_id, best_ids)


def _thresholds(logits: Tensor, sampling: Sampling, mask: TokenMask | None, workspace: Workspace | None) -> Tensor:
    """[N] float32, the smallest raw logit of each row that survives truncation, as a draw finds it."""
    stats = RowStats.empty(len(logits), device=logits.device)
    anywhere = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
    streams = Streams(anywhere, anywhere, anywhere)
    draw(logits, sampling, streams, Purpose.draft, row_stats=stats, workspace=workspace, mask=mask)
    return stats.threshold


def _check_temperature(temperature: Tensor, num_rows: int) -> None:
    if temperature.shape != (num_rows,) or temperature.dtype != torch.float32:
        raise ValueError(
            f"temperature must be one float32 per row, [{num_rows}]; found {list(temperature.shape)} "
            f"{temperature.dtype}"
        )


def logprobs(
    logits: Tensor,
    token_ids: Tensor,
    num_top: int,
    sampling: Sampling | None = None,
    mask: TokenMask | None = None,
    workspace: Workspace | None = None,
) -> TopLogprobs:
    """Look the output tokens up in their rows.

    Arguments and result are those of kernels.reference.logprobs, but that logits are bfloat16, float16 or float32.

    Args:
        workspace: scratch memory; None takes fresh memory for this call.

    Raises:
        ValueError: a tensor's shape, type or layout is not as there, or the raw distribution is asked for under a mask.
    """
    check_processed(sampling, mask)
    check_logits(logits, "logits", dimensions=2)
    num_rows, vocab_size = logits.shape
    if token_ids.shape != (num_rows,) or token_ids.dtype != torch.int64:
        raise ValueError(
            f"token_ids must be one int64 per row, [{num_rows}]; found {list(token_ids.shape)} {token_ids.dtype}"
        )
    if sampling is not None:
        _check_temperature(sampling.temperature, num_rows)
    if num_top < 0:
        raise ValueError(f"num_top must be 0 or more, found {num_top}")
    num_top, device = min(num_top, vocab_size), logits.device
    found = TopLogprobs(
        token_logprob=torch.empty(num_rows, dtype=torch.float32, device=device),
        top_token_ids=torch.empty(num_rows, num_top, dtype=torch.int64, device=device),
        top_logprobs=torch.empty(num_rows, num_top, dtype=torch.float32, device=device),
        rank=torch.empty(num_rows, dtype=torch.int64, device=device),
    )
    if num_rows == 0:
        return found
    _logprobs_kernel[(num_rows,)](
        logits,
        logits.stride(0),
        vocab_size,
        None if sampling is None else sampling.temperature.contiguous(),
        None if sampling is None or not sampling.truncates else _thresholds(logits, sampling, mask, workspace),
        mask_rows(mask, "mask", (num_rows,), vocab_size),
        token_ids.contiguous(),
        num_top,
        found.token_logprob,
        found.top_token_ids,
        found.top_logprobs,
        found.rank,
        STEPS=triton.next_power_of_2(triton.cdiv(vocab_size, CHUNKS_PER_STEP * CHUNK)),
        CHUNKS=CHUNKS_PER_STEP,
        CHUNK=CHUNK,
        num_warps=8,
    )
    return found
