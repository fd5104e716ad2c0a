"""Rounds with rows as language models give them: few likely tokens, a long tail, drafts close to the targets.

The logits of a row are independent and exponential with mean s, so that the sorted row follows Zipf's law,
log p(rank) = c - s log(rank), with the ranks in random order over the vocabulary. A draft row is its target row with
normal noise. Both are rounded to the dtype before anything is drawn from them.

Shapes: R requests, K draft tokens of each, V the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from harness.checks.agreement.round_inputs import DrawInputs, RoundInputs
from kernels.contract import Draft, RowStats, Sampling, Streams
from kernels.core import Core
from kernels.random.streams import Purpose

EXPONENTS = (1.0, 2.0)
"""Zipf exponents at temperature 1, spread evenly over the requests: from about 10 nats of entropy to 2."""
DRAFT_NOISE = 0.5
"""Standard deviation of the draft's logits around the target's."""


@dataclass(frozen=True)
class RoundShape:
    """What a round of rows is like."""

    num_requests: int
    num_draft_tokens: int
    vocab_size: int
    dtype: torch.dtype
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    shared_noise: bool = False
    """Drafts are drawn with the coupled method's noise."""
    one_hot: bool = False
    """The drafts' logits are not kept."""


def streams_of(num_requests: int, generator: torch.Generator) -> Streams:
    """Random streams of some requests."""
    device = generator.device
    seeds = torch.randint(-(2**63), 2**63 - 1, (num_requests,), generator=generator, device=device)
    positions, rounds = (
        torch.randint(0, limit, (num_requests,), generator=generator, device=device) for limit in (100_000, 10_000)
    )
    return Streams(seeds, positions, rounds)


def sampling_of(shape: RoundShape, num_rows: int, device: torch.device) -> Sampling:
    """The parameters of the shape, for some rows."""
    return Sampling.same_for_all(num_rows, shape.temperature, shape.top_k, shape.top_p, shape.min_p, device)


def target_rows_of(shape: RoundShape, generator: torch.Generator) -> torch.Tensor:
    """[R, K + 1, V] float32 logits."""
    requests, device = shape.num_requests, generator.device
    exponents = torch.linspace(*EXPONENTS, requests, device=device)[:, None, None]
    target = torch.empty(requests, shape.num_draft_tokens + 1, shape.vocab_size, device=device)
    return target.exponential_(generator=generator).mul_(exponents)


@dataclass(frozen=True)
class DraftedRound:
    """A round, and the draws that its drafts came from."""

    inputs: RoundInputs
    drafts: DrawInputs
    """Of R * K rows, request after request."""


def drafted_round(shape: RoundShape, core: Core, generator: torch.Generator) -> DraftedRound:
    """A round whose drafts a core has drawn, with the statistics of their rows kept beside the cache.

    Args:
        shape: of the round.
        core: draws the drafts.
        generator: of logits and streams; its device is theirs.
    """
    device, requests, width = generator.device, shape.num_requests, shape.num_draft_tokens
    target = target_rows_of(shape, generator)
    cache = torch.empty_like(target[:, :width]).normal_(std=DRAFT_NOISE, generator=generator)
    cache = cache.add_(target[:, :width]).to(shape.dtype)
    streams = streams_of(requests, generator)
    offsets = torch.arange(width, device=device)
    here = Streams(
        streams.seeds.repeat_interleave(width),
        (streams.positions[:, None] + offsets).flatten(),
        streams.rounds.repeat_interleave(width),
    )
    rows, sampling = cache.view(requests * width, shape.vocab_size), sampling_of(shape, requests * width, device)
    kept = RowStats.empty(requests * width, device=device)
    if shape.shared_noise:
        drawn, stats = core.coupled_draw(rows, sampling, here, shape.vocab_size), None
    else:
        drawn = core.draw(rows, sampling, here, Purpose.draft, row_stats=kept)
        stats = RowStats(*(each.view(requests, width) for each in (kept.maximum, kept.normalizer, kept.threshold)))
    draft = Draft(
        drawn.token_ids.view(requests, width),
        torch.full((requests,), width, device=device),
        logits=None if shape.one_hot else cache,
        row_stats=None if shape.one_hot else stats,
    )
    inputs = RoundInputs(target.to(shape.dtype).flatten(0, 1), draft, sampling_of(shape, requests, device), streams)
    purpose = None if shape.shared_noise else Purpose.draft
    return DraftedRound(inputs, DrawInputs(rows, sampling, here, purpose, shape.vocab_size))
