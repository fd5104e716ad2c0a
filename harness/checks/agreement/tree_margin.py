"""How much rounding it takes to explain a verdict about trees: found by trying, as a walk has no margin in closed form;
the children that were drawn of a node have one.

Every logit of the requests at hand is moved at random so that its probability changes by about a share of itself, and
so is the temperature; the reference verifies these rows in float64. The smallest share that gives the verdict in
question is its margin. A decision at its boundary goes the other way in half of the tries, a wrong one in none.

Shapes: R requests, N nodes, n children of each.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from harness.checks.agreement.counts import ROUNDING
from harness.checks.agreement.margins import nearby
from harness.checks.agreement.round_inputs import ChildDraws, RoundInputs
from harness.checks.agreement.token_margin import interval_distance
from kernels.contract import NO_TOKEN, Sampling, Verification, VerificationResult
from kernels.core import reference_core
from kernels.methods import SMALLEST_REST, SiblingDraws
from kernels.random.streams import Purpose, uniform
from kernels.reference.proposal import to_draft_ids
from kernels.reference.truncation import processed

SHARES = (ROUNDING / 100, ROUNDING / 10, ROUNDING)
NUM_TRIES = 16
"""Of each share."""


def same_verdicts(found: VerificationResult, expected: VerificationResult) -> Tensor:
    """[R] bool; paths only where both have them."""
    same = (found.token_ids == expected.token_ids).all(dim=1)
    if found.path is not None and expected.path is not None:
        same &= (found.path == expected.path).all(dim=1)
    return same & (found.num_accepted == expected.num_accepted) & (found.invalid == expected.invalid)


def tree_margins(inputs: RoundInputs, verification: Verification, found: VerificationResult) -> Tensor:
    """The margin of each request's verdict.

    Args:
        inputs: the round, R requests, no padded slots.
        verification: by a method for trees.
        found: fields [R].

    Returns:
        [R] float64; infinity where no share explains the verdict, and at temperature 0, where nothing is rounded.
    """
    generator = torch.Generator(inputs.target_logits.device).manual_seed(0)
    margins = torch.full(found.num_accepted.shape, torch.inf, dtype=torch.float64, device=found.num_accepted.device)
    for share in SHARES:
        for _ in range(NUM_TRIES):
            same = same_verdicts(_moved(inputs, share, generator).verified_by(reference_core(), verification), found)
            explained = same & (inputs.sampling.temperature > 0)
            margins = torch.where(explained, margins.clamp(max=share), margins)
    return margins


def _moved(inputs: RoundInputs, share: float, generator: torch.Generator) -> RoundInputs:
    draft = inputs.draft
    if draft.logits is not None:
        draft = replace(draft, logits=_noisy(draft.logits, share, generator))
    sampling: Sampling = inputs.sampling
    drawn = torch.randn(sampling.temperature.shape, generator=generator, device=generator.device, dtype=torch.float64)
    sampling = replace(sampling, temperature=sampling.temperature.double() * (1 + share * drawn))
    return replace(inputs, target_logits=_noisy(inputs.target_logits, share, generator), draft=draft, sampling=sampling)


def child_margins(inputs: ChildDraws, found: Tensor) -> Tensor:
    """The margin of the children that were drawn of each node, as of draws of one token: for each child the distance of
    its uniform number from its interval, among what the children before it leave; the largest counts.

    Args:
        inputs: N nodes.
        found: [N, n] int64.

    Returns:
        [N] float64; infinity where no rounding can explain the children, as at temperature 0.
    """
    streams, vocab_size = inputs.streams, inputs.logits.shape[1]
    num_target = vocab_size if inputs.draft_to_target is None else int(inputs.draft_to_target.max()) + 1
    inside = (found >= 0) & (found < num_target)
    known = to_draft_ids(found.where(inside, 0), inputs.draft_to_target, num_target, vocab_size)
    possible, ended = inside & (known >= 0), found == NO_TOKEN
    token_ids = known.where(possible, 0)
    margins = []
    for each in nearby(inputs.sampling):
        rows = processed(inputs.logits, each)
        weights = rows.probs()
        margin = torch.where((each.temperature > 0) & ~rows.invalid, 0.0, torch.inf).double()
        for child in range(found.shape[1]):
            uniforms = uniform(
                streams.seeds, Purpose.draft, streams.positions, streams.rounds, inputs.branches[:, child]
            )
            token, rest = token_ids[:, child], weights.sum(dim=1)
            is_left = possible[:, child] & (weights.gather(1, token[:, None])[:, 0] > 0)
            distance = interval_distance(weights, uniforms, token) / rest / 2
            nothing_left = ended[:, child] & (rest < SMALLEST_REST * (1 + ROUNDING))
            drawn = torch.where(is_left, distance, torch.where(nothing_left, 0.0, torch.inf))
            margin = torch.maximum(margin, drawn)
            if inputs.siblings is SiblingDraws.distinct:
                weights.scatter_(1, token.where(is_left, 0)[:, None], torch.where(is_left, 0.0, weights[:, 0])[:, None])
        margins.append(margin)
    return torch.stack(margins).amin(dim=0)


def _noisy(logits: Tensor, share: float, generator: torch.Generator) -> Tensor:
    noise = torch.randn(logits.shape, generator=generator, device=generator.device, dtype=torch.float64)
    return logits.double() + share * noise
