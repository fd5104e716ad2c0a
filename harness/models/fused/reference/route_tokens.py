"""Choose each token's experts. The specification of harness.models.fused.route_tokens."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from harness.models.fused.routing import Choice, Routing


def route_tokens(states: Tensor, weight: Tensor, bias: Tensor, choice: Choice) -> Routing:
    """See harness.models.fused.route_tokens; for any number of tokens."""
    num_tokens, num_experts = states.shape[0], weight.shape[0]
    # [N, E]
    scores = functional.linear(states.float(), weight.float()).sigmoid()
    candidates = scores + bias
    # [N, groups, E / groups]
    grouped = candidates.view(num_tokens, choice.num_groups, -1)
    if choice.num_chosen_groups < choice.num_groups:
        group_scores = grouped.topk(2, dim=-1).values.sum(-1)
        best = group_scores.topk(choice.num_chosen_groups, dim=-1).indices
        closed = torch.ones_like(group_scores, dtype=torch.bool).scatter_(1, best, False)
        candidates = grouped.masked_fill(closed[..., None], float("-inf")).view(num_tokens, num_experts)
    # [N, k], the experts ascending
    chosen = candidates.topk(choice.top_k, dim=-1).indices.sort(dim=-1).values
    weights = scores.gather(1, chosen)
    if choice.is_normalized:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    by_expert = chosen.flatten().sort(stable=True)
    places = torch.empty_like(by_expert.indices)
    places[by_expert.indices] = torch.arange(len(places), device=places.device)
    experts = torch.arange(num_experts + 1, device=states.device)
    return Routing(
        torch.searchsorted(by_expert.values, experts).int(),
        (by_expert.indices // choice.top_k).int(),
        places.view(num_tokens, -1).int(),
        weights * choice.scaling,
    )
