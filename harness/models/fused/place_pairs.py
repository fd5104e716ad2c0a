"""Order tokens by the experts that a router chose for them. Twin of harness.models.fused.reference.place_pairs.

A pair's place is the number of pairs that stand before it: those of lower experts, and those of its own expert with a
lower number. A program counts for some pairs, or for some experts where theirs begin, over all pairs; nothing depends
on who comes first.

Shapes: N tokens, E experts, k experts of a token.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from harness.models.fused.checks import check_dtype, check_tensor
from harness.models.fused.routing import Routing

ROWS = 16
"""Pairs, or experts, of a program. 16 tokens of 8 out of 128 experts make 17 programs."""
BLOCK = 256
"""Pairs that they are compared with at a time: with 4 warps 32 comparisons a thread."""


@triton.jit(do_not_specialize=["num_pairs"])
def _place_pairs_kernel(
    chosen,  # [N, k] int64
    given,  # [N, k], weights
    starts,  # [E + 1] int32
    tokens_at,  # [N * k] int32
    places,  # [N, k] int32
    weights,  # [N, k] float32
    num_pairs,  # N * k
    num_experts,
    TOP_K: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    num_of_pairs = tl.cdiv(num_pairs, ROWS)
    is_of_pairs = tl.program_id(0) < num_of_pairs
    own = tl.where(is_of_pairs, tl.program_id(0), tl.program_id(0) - num_of_pairs) * ROWS + tl.arange(0, ROWS)
    is_pair = is_of_pairs & (own < num_pairs)
    expert = tl.where(is_of_pairs, tl.load(chosen + own, mask=is_pair, other=0).to(tl.int32), own)
    place = tl.full((ROWS,), 0, tl.int32)
    for first in range(0, num_pairs, BLOCK):
        others = first + tl.arange(0, BLOCK)
        is_other = others < num_pairs
        other = tl.load(chosen + others, mask=is_other, other=0).to(tl.int32)
        earlier = (other[None, :] == expert[:, None]) & (others[None, :] < own[:, None]) & is_of_pairs
        before = ((other[None, :] < expert[:, None]) | earlier) & is_other[None, :]
        place += tl.sum(before.to(tl.int32), axis=1)
    tl.store(places + own, place, mask=is_pair)
    tl.store(tokens_at + place, own // TOP_K, mask=is_pair)
    weight = tl.load(given + own, mask=is_pair, other=0.0)
    tl.store(weights + own, weight.to(tl.float32), mask=is_pair)
    tl.store(starts + own, place, mask=(own <= num_experts) & (not is_of_pairs))


def place_pairs(chosen: Tensor, weights: Tensor, num_experts: int) -> Routing:
    """The routing of what a router chose.

    Args:
        chosen: [N, k] int64 in [0, E), without gaps: experts of each token, in any order.
        weights: [N, k] bfloat16, float16 or float32, without gaps.
        num_experts: E.

    Returns:
        The routing, the places of a token's pairs in the order in which its experts are given.

    Raises:
        ValueError: a tensor's shape, type or layout is not as above.
    """
    check_dtype("weights", weights)
    check_tensor("chosen", chosen, (len(chosen), chosen.shape[-1]), torch.int64)
    check_tensor("weights", weights, tuple(chosen.shape), weights.dtype)
    num_pairs, device = chosen.numel(), chosen.device
    routing = Routing(
        torch.empty(num_experts + 1, dtype=torch.int32, device=device),
        torch.empty(num_pairs, dtype=torch.int32, device=device),
        torch.empty(chosen.shape, dtype=torch.int32, device=device),
        torch.empty(chosen.shape, dtype=torch.float32, device=device),
    )
    _place_pairs_kernel[(triton.cdiv(num_pairs, ROWS) + triton.cdiv(num_experts + 1, ROWS),)](
        chosen=chosen,
        given=weights,
        starts=routing.starts,
        tokens_at=routing.tokens,
        places=routing.places,
        weights=routing.weights,
        num_pairs=num_pairs,
        num_experts=num_experts,
        TOP_K=chosen.shape[1],
        ROWS=ROWS,
        BLOCK=BLOCK,
        num_warps=4,
    )
    return routing
