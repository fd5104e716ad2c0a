"""Verification as it is usually written in torch: softmax of everything first, then the rule on probabilities.

This is what the core is compared with, and one side of the question whether the softmax should be fused. It draws with
torch's own random numbers, so its tokens differ from the core's; its law is the same.

Shapes: R requests, K draft tokens of each, V the vocabulary, N rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.checks.kernel_bench.case import Truncation
from harness.checks.kernel_bench.rows import MIN_P, TOP_K, TOP_P


def probabilities(logits: Tensor, temperature: float, truncation: Truncation) -> Tensor:
    """[..., V] any float -> [..., V] float32; temperature above 0."""
    scaled = logits.float() / temperature
    if truncation is Truncation.top_k:
        smallest = scaled.topk(TOP_K, dim=-1).values[..., -1:]
        scaled = scaled.masked_fill(scaled < smallest, -torch.inf)
    elif truncation is Truncation.top_p:
        ordered, order = scaled.sort(dim=-1, descending=True)
        probs = torch.softmax(ordered, dim=-1)
        ordered = ordered.masked_fill(probs.cumsum(dim=-1) - probs >= TOP_P, -torch.inf)
        scaled = torch.empty_like(scaled).scatter_(-1, order, ordered)
    elif truncation is Truncation.min_p:
        probs = torch.softmax(scaled, dim=-1)
        scaled = scaled.masked_fill(probs < MIN_P * probs.amax(dim=-1, keepdim=True), -torch.inf)
    return torch.softmax(scaled, dim=-1)


def token_from(weights: Tensor) -> Tensor:
    """[N, V] unnormalised weights -> [N] int64, one token each: the first arrival of V Poisson processes."""
    return (weights / torch.empty_like(weights).exponential_()).argmax(dim=-1)


def verify_probabilities(
    target_probs: Tensor, draft_probs: Tensor, token_ids: Tensor, slots: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Probabilistic verification.

    Args:
        target_probs: [R, K + 1, V] float32.
        draft_probs: [S, K, V] float32.
        token_ids: [R, K] int64.
        slots: [R] int64, the request's row of `draft_probs`; None: its own number.

    Returns:
        ([R] int64 number of accepted tokens, [R] int64 the token after them).
    """
    num_requests, width = token_ids.shape
    requests = torch.arange(num_requests, device=token_ids.device)
    rows = requests if slots is None else slots
    positions = torch.arange(width, device=token_ids.device)
    target = target_probs[requests[:, None], positions, token_ids]
    proposed = draft_probs[rows[:, None], positions, token_ids]
    passes = torch.rand_like(target) * proposed < target
    num_accepted = passes.long().cumprod(dim=1).sum(dim=1)
    draft_row = draft_probs[rows, num_accepted.clamp(max=width - 1)]
    rejected = (num_accepted < width).float()
    residual = (target_probs[requests, num_accepted] - rejected[:, None] * draft_row).clamp(min=0)
    return num_accepted, token_from(residual)


def verify_logits(
    target_logits: Tensor, cache: Tensor, slots: Tensor, token_ids: Tensor, temperature: float, truncation: Truncation
) -> tuple[Tensor, Tensor]:
    """The whole of it: gather the draft rows, two softmaxes, the rule.

    Args:
        target_logits: [R * (K + 1), V].
        cache: [S, K, V] raw draft logits.
        slots: [R] int64.
        token_ids: [R, K] int64.
        temperature: above 0, of every request.
        truncation: of every request.

    Returns:
        As verify_probabilities.
    """
    num_requests, width = token_ids.shape
    target_probs = probabilities(target_logits.view(num_requests, width + 1, -1), temperature, truncation)
    draft_probs = probabilities(cache[slots], temperature, truncation)
    return verify_probabilities(target_probs, draft_probs, token_ids, None)


def draw_logits(logits: Tensor, temperature: float, truncation: Truncation) -> Tensor:
    """[N, V] -> [N] int64, one token of each row."""
    return token_from(probabilities(logits, temperature, truncation))
