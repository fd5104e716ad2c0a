"""A small certification on the live device, of the very functions that a worker is about to run.

Requests with a known law go through the engine's draft sampler and through a verification, K = 3 drafts a round, until
each has NUM_TOKENS tokens: the next token of target and drafter depends on the last one alone. Pearson's statistic
compares how often every sequence came out with its exact probability. With NUM_REQUESTS a deviation of .007 in total
variation is found with probability .99; a flawless verification fails with probability LEVEL.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from harness.plugins.vllm.handover import fresh_seeds

NUM_TOKENS, VOCAB_SIZE, DEPTH = 4, 4, 3
NUM_REQUESTS = 2**20
BATCH = 2**18
LEVEL = 1e-6
TEMPERATURE = 0.8
SEED_STEP = 0x9E3779B97F4A7C15 - 2**64


@dataclass(frozen=True)
class Attestation:
    """What was found."""

    p_value: float
    chi_square: float
    degrees_of_freedom: int
    num_requests: int
    mean_accepted: float
    """Accepted tokens a round."""

    @property
    def passes(self) -> bool:
        return self.p_value >= LEVEL


@dataclass(frozen=True)
class Way:
    """How an engine drafts and verifies."""

    rejection_sample: Callable[..., tuple[Tensor, Tensor]]
    gumbel_sample: Callable[..., Tensor]
    is_sampled: bool
    """Drafts are sampled and their logits kept; else they are the drafter's argmax."""
    has_fresh_seeds: bool
    """Each round's drafts get seeds of their own."""
    is_raw: bool = False
    """Target rows come without temperature, which is 1; else over TEMPERATURE."""
    is_block: bool = False
    """Passed to vLLM's own function."""


def _tables(device: torch.device) -> tuple[Tensor, Tensor]:
    """[V, V] float32 logits each, of target and drafter, a row for each last token."""
    generator = torch.Generator().manual_seed(20261122)
    target, draft = torch.randn(2, VOCAB_SIZE, VOCAB_SIZE, generator=generator).unbind()
    return target.to(device), (0.5 * target + draft).to(device)


def _exact_law(target: Tensor, temperature: float) -> Tensor:
    """[V ** NUM_TOKENS] float64, of the sequences that begin after token 0."""
    step = (target.double() / temperature).softmax(dim=1).cpu()
    law = step[0]
    for _ in range(NUM_TOKENS - 1):
        law = (law[:, None] * step.repeat(len(law) // VOCAB_SIZE, 1)).flatten()
    return law


def _known(function: Callable[..., Any], **known: Any) -> dict[str, Any]:
    """Those arguments that the function takes."""
    parameters = inspect.signature(function).parameters
    return {name: value for name, value in known.items() if name in parameters}


class _Requests:
    """A batch of requests, one in each slot."""

    def __init__(self, way: Way, first: int, count: int, device: torch.device) -> None:
        self.way, self.device, self.count = way, device, count
        self.target, self.draft = _tables(device)
        self.temperature = torch.full((count,), 1.0 if way.is_raw else TEMPERATURE, device=device)
        self.seeds = (first + torch.arange(count, device=device)) * SEED_STEP
        self.slots = torch.randperm(count, generator=torch.Generator().manual_seed(first)).to(device)
        self.positions = self.slots % 7
        """[S] of the last token, by place in the batch."""
        self.last = torch.zeros(count, dtype=torch.long, device=device)
        self.tokens = torch.zeros(count, NUM_TOKENS + DEPTH + 1, dtype=torch.long, device=device)
        self.num_emitted = torch.zeros(count, dtype=torch.long, device=device)
        self.cache = torch.zeros(count, DEPTH, VOCAB_SIZE, device=device)
        self.num_accepted = 0

    def propose(self) -> Tensor:
        """[S, K] draft tokens."""
        if not self.way.is_sampled:
            drafts, last = [], self.last
            for _ in range(DEPTH):
                last = self.draft[last].argmax(dim=1)
                drafts.append(last)
            return torch.stack(drafts, dim=1)
        seeds = self.seeds
        if self.way.has_fresh_seeds:
            seeds = torch.zeros_like(seeds)
            fresh_seeds(self.seeds, self.slots, self.positions, torch.zeros_like(self.slots), seeds)
        drafts, last = [], self.last
        for column in range(DEPTH):
            logits = self.draft[last]
            place = torch.tensor(column, device=self.device)
            last = self.way.gumbel_sample(
                **_known(
                    self.way.gumbel_sample,
                    logits=logits,
                    expanded_idx_mapping=self.slots.int(),
                    temperature=self.temperature,
                    seed=seeds,
                    pos=self.positions + column,
                    apply_temperature=True,
                    is_drafting=True,
                    output_processed_logits=self.cache,
                    output_processed_logits_col=place,
                    logits_cache=self.cache,
                    logits_cache_col=place,
                )
            ).long()
            drafts.append(last)
        return torch.stack(drafts, dim=1)

    def round(self) -> None:
        drafts, width = self.propose(), DEPTH + 1
        fed = torch.cat([self.last[:, None], drafts], dim=1)
        rows = self.target[fed.flatten()]
        request = torch.arange(self.count, device=self.device).repeat_interleave(width)
        local = torch.arange(width, device=self.device).repeat(self.count)
        sampled, num_sampled = self.way.rejection_sample(
            **_known(
                self.way.rejection_sample,
                target_logits=rows if self.way.is_raw else rows / TEMPERATURE,
                draft_logits=self.cache if self.way.is_sampled else None,
                draft_sampled=fed.flatten().int(),
                cu_num_logits=(torch.arange(self.count + 1, device=self.device) * width).int(),
                pos=self.positions[request] + local,
                idx_mapping=self.slots.int(),
                expanded_idx_mapping=self.slots[request].int(),
                expanded_local_pos=local.int(),
                temperature=self.temperature,
                seed=self.seeds,
                num_speculative_steps=DEPTH,
                use_block_verification=self.way.is_block,
            )
        )
        running = self.num_emitted < NUM_TOKENS
        self.num_accepted += int(((num_sampled - 1) * running).sum())
        for column in range(width):
            taken = running & (column < num_sampled)
            token = sampled[:, column].long().clamp(0, VOCAB_SIZE - 1)
            place = (self.num_emitted + column).clamp(max=self.tokens.shape[1] - 1)[:, None]
            kept = torch.where(taken, token, self.tokens.gather(1, place)[:, 0])
            self.tokens.scatter_(1, place, kept[:, None])
            self.last = torch.where(taken, token, self.last)
        step = torch.where(running, num_sampled.long(), 0)
        self.num_emitted += step
        self.positions = self.positions + step


def attest(way: Way, device: torch.device, num_requests: int = NUM_REQUESTS, seed: int = 0) -> Attestation:
    """Compare the law of what the engine emits with the exact law.

    Args:
        way: how it drafts and verifies.
        device: of the worker.
        num_requests: simulated; a multiple of the batch above BATCH.
        seed: of the requests' seeds.
    """
    counts = torch.zeros(VOCAB_SIZE**NUM_TOKENS, dtype=torch.long, device=device)
    powers = VOCAB_SIZE ** torch.arange(NUM_TOKENS - 1, -1, -1, device=device)
    num_rounds = num_accepted = 0
    for first in range(0, num_requests, BATCH):
        batch = _Requests(way, seed * 2**32 + first, min(BATCH, num_requests - first), device)
        for _ in range(NUM_TOKENS):
            num_rounds += int((batch.num_emitted < NUM_TOKENS).sum())
            batch.round()
        counts += torch.bincount((batch.tokens[:, :NUM_TOKENS] * powers).sum(dim=1), minlength=len(counts))
        num_accepted += batch.num_accepted
    expected = _exact_law(_tables(device)[0], 1.0 if way.is_raw else TEMPERATURE) * num_requests
    statistic = ((counts.cpu() - expected) ** 2 / expected).sum()
    freedom = len(expected) - 1
    p_value = float(torch.special.gammaincc(torch.tensor(freedom / 2, dtype=torch.float64), statistic / 2))
    return Attestation(p_value, float(statistic), freedom, num_requests, num_accepted / num_rounds)
