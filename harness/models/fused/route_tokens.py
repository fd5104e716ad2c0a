"""Choose each token's experts and order the tokens by expert. Twin of harness.models.fused.reference.route_tokens.

    score = sigmoid(W x)                     in float32
    chosen = the k largest of score + bias   among the experts of the best groups, if there are groups
    weight = score / (sum of the chosen scores + 1e-20) * scaling

The first kernel multiplies; its programs share out the hidden size, so that many multiprocessors read. The second is a
single program: it adds up the shares in order, chooses, and counts who goes where. Nothing depends on who comes first.

Source: DeepSeek-AI, DeepSeek-V3 Technical Report (2024), equations 12 to 16; Glm4MoeLiteTopkRouter of transformers.

Shapes: N tokens, H hidden size, E experts, k experts of a token, P programs that share the hidden size.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from harness.models.fused.checks import check_dtype, check_tensor
from harness.models.fused.routing import MAX_TOKENS, Choice, Routing

NUM_STAGES = 3
MIN_TILE = 16
"""Side of the smallest tile that tensor cores multiply."""
NUM_SHARES = 8
"""P. With 64 tokens of 2048 components and 64 experts, 32 programs of the first kernel read 32 kB of weights each, and
the one of the second 128 kB of sums."""
BLOCKS = {2: 128, 4: 32}
"""Components multiplied at a time, by their bytes. Ordinary arithmetic, in float32, needs many registers."""
SUM_OFFSET = 1e-20
"""What transformers adds to the sum of the chosen scores."""
LARGEST = 1.0e38
"""Stands for a score that is no number: like torch.topk, the choice takes it for the largest. Its negative stands for
what cannot be chosen, so that -inf marks what has been."""
ELEMENTS_PER_WARP = 256
"""Scores that a warp of the second kernel holds."""


@triton.jit
def _router_logits_kernel(
    states,  # [N, H]
    weight,  # [E, H]
    parts,  # [P, N, E] float32
    num_tokens,
    num_experts,
    hidden_size,
    ROWS: tl.constexpr,
    EXPERTS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    STAGES: tl.constexpr,
):
    tokens = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    experts = tl.arange(0, EXPERTS)
    result = tl.full((ROWS, EXPERTS), 0.0, tl.float32)
    for block in tl.range(BLOCKS, num_stages=STAGES):
        columns = (tl.program_id(1) * BLOCKS + block) * BLOCK + tl.arange(0, BLOCK)
        inside = columns[None, :] < hidden_size
        state = tl.load(
            states + tokens.to(tl.int64)[:, None] * hidden_size + columns[None, :],
            mask=(tokens < num_tokens)[:, None] & inside,
            other=0.0,
        )
        row = tl.load(
            weight + experts[:, None] * hidden_size + columns[None, :],
            mask=(experts < num_experts)[:, None] & inside,
            other=0.0,
        )
        # Products of 16-bit numbers are exact in float32, so this is the float32 product that transformers computes.
        result = tl.dot(state, tl.trans(row), result, input_precision="ieee")
    at = (tl.program_id(1) * num_tokens + tokens)[:, None] * num_experts + experts[None, :]
    tl.store(parts + at, result, mask=(tokens < num_tokens)[:, None] & (experts < num_experts)[None, :])


@triton.jit
def _route_tokens_kernel(
    parts,  # [P, N, E] float32
    bias,  # [E] float32
    starts,  # [E + 1] int32
    tokens_at,  # [N * k] int32
    places,  # [N, k] int32
    weights,  # [N, k] float32
    num_tokens,
    num_experts,
    scaling,
    SUM_OFFSET: tl.constexpr,
    LARGEST: tl.constexpr,
    NUM_PARTS: tl.constexpr,
    TOP_K: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUPS_PADDED: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    GROUP_PADDED: tl.constexpr,
    CHOSEN_GROUPS: tl.constexpr,
    IS_NORMALIZED: tl.constexpr,
    TOKENS: tl.constexpr,
):
    COLUMNS: tl.constexpr = GROUPS_PADDED * GROUP_PADDED
    tokens, columns = tl.arange(0, TOKENS), tl.arange(0, COLUMNS)
    # Each group takes a power of two of columns, of which the last may be empty.
    experts = columns // GROUP_PADDED * GROUP_SIZE + columns % GROUP_PADDED
    is_expert = (columns // GROUP_PADDED < GROUPS) & (columns % GROUP_PADDED < GROUP_SIZE)
    is_token = tokens < num_tokens
    filled = is_token[:, None] & is_expert[None, :]
    at = tokens[:, None] * num_experts + experts[None, :]
    logits = tl.full((TOKENS, COLUMNS), 0.0, tl.float32)
    for part in tl.static_range(NUM_PARTS):
        logits += tl.load(parts + part * num_tokens * num_experts + at, mask=filled, other=0.0)
    scores = 1.0 / (1.0 + tl.exp(-logits))
    correction = tl.load(bias + experts, mask=is_expert, other=0.0)
    candidates = scores + correction[None, :]
    # No comparison holds for what is no number.
    candidates = tl.where(candidates < LARGEST, candidates, LARGEST)
    candidates = tl.where(is_expert[None, :], candidates, -LARGEST)

    if CHOSEN_GROUPS < GROUPS:
        grouped = tl.reshape(candidates, (TOKENS, GROUPS_PADDED, GROUP_PADDED))
        best = tl.argmax(grouped, axis=2)
        is_best = tl.arange(0, GROUP_PADDED)[None, None, :] == best[:, :, None]
        second = tl.max(tl.where(is_best, -float("inf"), grouped), axis=2)
        group_scores = tl.max(grouped, axis=2) + second
        groups = tl.arange(0, GROUPS_PADDED)
        group_scores = tl.where((groups < GROUPS)[None, :], group_scores, -float("inf"))
        is_open = tl.full((TOKENS, GROUPS_PADDED), 0, tl.int32)
        for _ in tl.static_range(CHOSEN_GROUPS):
            is_next = groups[None, :] == tl.argmax(group_scores, axis=1)[:, None]
            is_open = tl.where(is_next, 1, is_open)
            group_scores = tl.where(is_next, -float("inf"), group_scores)
        grouped = tl.where((is_open == 1)[:, :, None], grouped, -LARGEST)
        candidates = tl.reshape(grouped, (TOKENS, COLUMNS))

    for _ in tl.static_range(TOP_K):
        is_next = columns[None, :] == tl.argmax(candidates, axis=1)[:, None]
        candidates = tl.where(is_next, -float("inf"), candidates)
    chosen = ((candidates == -float("inf")) & is_token[:, None]).to(tl.int32)

    weight = tl.where(chosen == 1, scores, 0.0)
    if IS_NORMALIZED:
        weight = weight / (tl.sum(weight, axis=1) + SUM_OFFSET)[:, None]
    pair = tokens[:, None] * TOP_K + tl.cumsum(chosen, axis=1) - chosen
    tl.store(weights + pair, weight * scaling, mask=chosen == 1)
    counts = tl.sum(chosen, axis=0)
    before = tl.cumsum(counts, axis=0) - counts
    place = before[None, :] + tl.cumsum(chosen, axis=0) - chosen
    tl.store(places + pair, place, mask=chosen == 1)
    tl.store(tokens_at + place, tl.broadcast_to(tokens[:, None], (TOKENS, COLUMNS)), mask=chosen == 1)
    tl.store(starts + experts, before, mask=is_expert)
    tl.store(starts + num_experts, num_tokens * TOP_K)


def route_tokens(states: Tensor, weight: Tensor, bias: Tensor, choice: Choice) -> Routing:
    """Choose experts.

    Of experts with the same score a token takes those with the lower numbers. Scores that are no numbers count as the
    largest, and give the token a weight that is none.

    Args:
        states: [N, H] bfloat16, float16 or float32, without gaps; N is 1 to 128.
        weight: [E, H] of the router, of the same type.
        bias: [E] float32, added to the scores for the choice alone.
        choice: how many are chosen, and how they are weighted.

    Returns:
        The routing. The logits are sums of float32, in an order of their own.

    Raises:
        ValueError: a tensor's shape, type or layout is not as above, or there are too many tokens.
    """
    check_dtype("states", states)
    (num_tokens, hidden_size), num_experts = states.shape, weight.shape[0]
    check_tensor("states", states, (num_tokens, hidden_size), states.dtype)
    check_tensor("weight", weight, (num_experts, hidden_size), states.dtype)
    check_tensor("bias", bias, (num_experts,), torch.float32)
    if not 0 < num_tokens <= MAX_TOKENS:
        raise ValueError(f"states must have 1 to {MAX_TOKENS} tokens, found {num_tokens}; run the experts unfused")
    device = states.device
    block = BLOCKS[states.element_size()]
    num_blocks = triton.cdiv(hidden_size, block * NUM_SHARES)
    num_parts = triton.cdiv(hidden_size, block * num_blocks)
    parts = torch.empty(num_parts, num_tokens, num_experts, dtype=torch.float32, device=device)
    _router_logits_kernel[(triton.cdiv(num_tokens, MIN_TILE), num_parts)](
        states=states,
        weight=weight,
        parts=parts,
        num_tokens=num_tokens,
        num_experts=num_experts,
        hidden_size=hidden_size,
        ROWS=MIN_TILE,
        EXPERTS=max(MIN_TILE, triton.next_power_of_2(num_experts)),
        BLOCK=block,
        BLOCKS=num_blocks,
        STAGES=NUM_STAGES,
        num_warps=4,
    )
    routing = Routing(
        torch.empty(num_experts + 1, dtype=torch.int32, device=device),
        torch.empty(num_tokens * choice.top_k, dtype=torch.int32, device=device),
        torch.empty(num_tokens, choice.top_k, dtype=torch.int32, device=device),
        torch.empty(num_tokens, choice.top_k, dtype=torch.float32, device=device),
    )
    group_size = num_experts // choice.num_groups
    groups_padded, group_padded = triton.next_power_of_2(choice.num_groups), triton.next_power_of_2(group_size)
    tokens = max(MIN_TILE, triton.next_power_of_2(num_tokens))
    _route_tokens_kernel[(1,)](
        parts=parts,
        bias=bias,
        starts=routing.starts,
        tokens_at=routing.tokens,
        places=routing.places,
        weights=routing.weights,
        num_tokens=num_tokens,
        num_experts=num_experts,
        scaling=choice.scaling,
        SUM_OFFSET=SUM_OFFSET,
        LARGEST=LARGEST,
        NUM_PARTS=num_parts,
        TOP_K=choice.top_k,
        GROUPS=choice.num_groups,
        GROUPS_PADDED=groups_padded,
        GROUP_SIZE=group_size,
        GROUP_PADDED=group_padded,
        CHOSEN_GROUPS=choice.num_chosen_groups,
        IS_NORMALIZED=choice.is_normalized,
        TOKENS=tokens,
        num_warps=max(4, min(32, tokens * groups_padded * group_padded // ELEMENTS_PER_WARP)),
    )
    return routing
