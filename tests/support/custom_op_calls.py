"""Calls of kernels.custom_ops for its tests: rounds in which every argument matters, rows, and trees."""

from dataclasses import replace

import torch

from harness.config.tree import branching
from kernels import custom_ops
from kernels.contract import Sampling, SiblingDraws, Streams, Verification, VerificationResult
from tests.support.kernel_rounds import DEVICE, LENGTHS, MIXED, KernelRound, kernel_round, moved, streams_of
from tests.support.kernel_tree_rounds import tree_round
from tests.support.random_round import GREEDY, PLAIN, sampling_of


def round_of(seed: int = 1, masked: bool = True, settings: list = MIXED) -> KernelRound:
    return kernel_round(settings, LENGTHS, 300, torch.bfloat16, masked=masked, seed=seed, padded=True)


def rows(num_rows: int, seed: int = 1) -> tuple[torch.Tensor, Sampling, Streams]:
    logits = 3 * torch.randn(num_rows, 70, generator=torch.Generator().manual_seed(seed))
    sampling = sampling_of(*(MIXED * num_rows)[:num_rows])
    return logits.bfloat16().to(DEVICE), moved(sampling, DEVICE), moved(streams_of(num_rows, seed), DEVICE)


def verified(batch: KernelRound, verification: Verification, counters: torch.Tensor | None) -> VerificationResult:
    return custom_ops.verify(
        batch.target_logits, batch.draft, batch.sampling, verification, batch.streams, batch.mask, counters
    )


def with_own_sampling(batch: KernelRound) -> KernelRound:
    """Drafts that say with which sampling they were drawn: half the temperature, so that the law is another."""
    own = batch.sampling.each(lambda field: field.clone())
    draft = replace(batch.draft, mask=None, sampling=replace(own, temperature=own.temperature / 2))
    return replace(batch, mask=None, draft=draft)


def every_argument() -> list[KernelRound]:
    """Rounds of one size, then of others, in which each argument changes tokens somewhere."""
    mapped = torch.randperm(300, generator=torch.Generator().manual_seed(2))[:200]
    return [
        *map(round_of, range(1, 9)),
        with_own_sampling(round_of(9)),
        kernel_round(MIXED, LENGTHS, 300, torch.bfloat16, mapped, seed=10),
        kernel_round(MIXED[:4], LENGTHS[:4], 300, seed=11),
    ]


def cut_trees(siblings: SiblingDraws = SiblingDraws.distinct) -> KernelRound:
    """Ragged trees, a chain among them; one request cuts and one is greedy."""
    settings = [(0.7, 0, 0.9, 0.0), GREEDY, PLAIN, PLAIN]
    batch = tree_round(settings, [branching(3, 1), branching(2, 2), (-1, 0), None], 63, siblings, seed=4)
    return KernelRound(batch.rows, batch.draft, batch.sampling, batch.streams)
