"""The executable specification of the fused operations: same names, same signatures, plain torch, on any device.

What each does and takes stands in the file of its name beside this one.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from harness.models.fp8_linear import FP8, dequantized, to_fp8
from harness.models.fused.checks import check_extras, check_joined, check_rows, place_for, written
from harness.models.fused.clamped_gate import ClampedGate
from harness.models.fused.routing import Choice, Routing
from harness.models.fused.tree_rows import TreeRows


def silu_mul(gate_up: Tensor) -> Tensor:
    """The roundings are those of LlamaMLP in transformers."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up


def add_rms_norm(states: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The roundings are those of LlamaRMSNorm in transformers."""
    total = states if states.dim() == 2 else sum(states[1:], states[0]).to(weight.dtype)
    total = total if residual is None else total + residual
    wide = total.float()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * scaled.to(total.dtype), total


def add_shares(states: Tensor, residual: Tensor) -> Tensor:
    """Shares are summed in float32 and rounded once before the residual is added."""
    return residual + (states if states.dim() == 2 else sum(states[1:], states[0]).to(residual.dtype))


def join_embedded(
    token_ids: Tensor,
    table: Tensor,
    features: Tensor,
    norms: tuple[tuple[Tensor, float], tuple[Tensor, float]] | None = None,
    positions: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The roundings are those of add_rms_norm; what the kernel refuses is refused here too."""
    check_joined(token_ids, table, features, norms or (), positions)
    states = functional.embedding(token_ids, table)
    if positions is not None:
        states = states.masked_fill(positions.unsqueeze(1) == 0, 0)
    if norms is not None:
        states, features = (
            add_rms_norm(each, None, *norm)[0] for each, norm in zip((states, features), norms, strict=True)
        )
    return torch.cat((states, features), dim=1), features


def linear(
    states: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    scales: Tensor | None = None,
    splits: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """This one never returns shares."""
    if scales is not None:
        weight = dequantized(weight, scales, states.dtype)
    result = functional.linear(states, weight, bias)
    return result if out is None else written(result, out)


def gated_linear(states: Tensor, weight: Tensor, bias: Tensor | None = None, scales: Tensor | None = None) -> Tensor:
    return silu_mul(linear(states, weight, bias, scales))


def rotate_and_store(
    qkv: Tensor,
    table: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    starts: Tensor,
    query_norm: Tensor | None = None,
    key_norm: Tensor | None = None,
    eps: float = 0.0,
    positions: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Waits for the device to leave out places beyond the capacity."""
    check_rows(slots, starts)
    _, num_key_heads, capacity, width = keys.shape
    if qkv.dim() == 3:
        qkv = sum(qkv[1:], qkv[0]).to(dtype or keys.dtype)
    num_rows, num_tokens = slots.shape[0], qkv.shape[0] // slots.shape[0]
    # [R, T, Hq + 2 Hk, D]
    heads = qkv.view(num_rows, num_tokens, -1, width)
    num_query_heads = heads.shape[2] - 2 * num_key_heads
    query, key, value = heads.split((num_query_heads, num_key_heads, num_key_heads), dim=2)
    places = starts[:, None] + torch.arange(num_tokens, device=starts.device)
    positions = places if positions is None else positions
    # [R, T, 1, D / 2]
    cosine, sine = table[positions.clamp_max(table.shape[0] - 1)].unsqueeze(2).chunk(2, dim=-1)
    stored = places < capacity
    row_slots = slots[:, None].expand(-1, num_tokens)[stored]
    new_keys, new_values = _rotated(key, key_norm, eps, cosine, sine)[stored], value[stored]
    rounds = keys.dtype is FP8
    keys[row_slots, :, places[stored]] = to_fp8(new_keys) if rounds else new_keys
    values[row_slots, :, places[stored]] = to_fp8(new_values) if rounds else new_values
    return _rotated(query, query_norm, eps, cosine, sine)


def _rotated(heads: Tensor, norm: Tensor | None, eps: float, cosine: Tensor, sine: Tensor) -> Tensor:
    """[R, T, heads, D], rounded once, at the end."""
    wide = heads.float()
    if norm is not None:
        wide = norm.float() * wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    first, second = wide.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1).to(heads.dtype)


def slot_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    starts: Tensor,
    scaling: float,
    tree: TreeRows | None = None,
    out: Tensor | None = None,
    windows: Tensor | None = None,
    sinks: Tensor | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Waits for the device to learn the longest row."""
    check_rows(slots, starts)
    num_rows, num_tokens, num_heads, width = queries.shape
    check_extras(windows, sinks, softcap, (num_rows, num_heads), is_tree=tree is not None)
    num_key_heads, capacity = keys.shape[1:3]
    longest = min(int(starts.max()) + num_tokens, capacity)
    grouped = queries.view(num_rows, num_tokens, num_key_heads, num_heads // num_key_heads, width)
    # [R, Hk, L, D]
    row_keys, row_values = (cache[slots, :, :longest].float() for cache in (keys, values))
    positions = starts[:, None] + torch.arange(num_tokens, device=starts.device)
    places = torch.arange(longest, device=starts.device)
    # A weight of 0 does not hide what lies beyond a row's length: 0 times NaN is NaN.
    row_values.masked_fill_((places > positions[:, -1:])[:, None, :, None], 0)
    scores = torch.einsum("rthgd,rhld->rhgtl", grouped.float(), row_keys) * scaling
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    visible = places <= positions[..., None] if tree is None else tree.visible(starts, longest)
    if windows is not None:
        visible &= places > positions.clamp_max(capacity - 1)[..., None] - windows[:, None, None]
    scores.masked_fill_(~visible[:, None, None], float("-inf"))
    if sinks is not None:
        # a key whose value is 0
        beside = sinks.float().view(1, num_key_heads, -1, 1, 1).expand(num_rows, -1, -1, num_tokens, 1)
        scores = torch.cat((scores, beside), dim=-1)
        row_values = functional.pad(row_values, (0, 0, 0, 1))
    attended = torch.einsum("rhgtl,rhld->rthgd", scores.softmax(-1), row_values)
    return place_for(out, (num_rows, num_tokens, num_heads * width), queries).copy_(attended.flatten(2))


def norm_latents(
    joint: Tensor,
    query_norm: Tensor | None,
    query_eps: float,
    latent_norm: Tensor,
    latent_eps: float,
    table: Tensor,
    keys: Tensor,
    slots: Tensor,
    starts: Tensor,
    interleaved: bool,
) -> Tensor | None:
    """Waits for the device to leave out positions beyond the capacity."""
    check_rows(slots, starts)
    (capacity, key_width), latent_width = keys.shape[2:], len(latent_norm)
    num_tokens = len(joint) // len(slots)
    query, latent, key = joint.split((joint.shape[1] - key_width, latent_width, key_width - latent_width), dim=-1)
    positions = (starts[:, None] + torch.arange(num_tokens, device=starts.device)).flatten()
    stored = positions < capacity
    row_slots = slots.repeat_interleave(num_tokens)[stored]
    turned = rotated(key, table[positions.clamp_max(len(table) - 1)], interleaved)
    normed = add_rms_norm(latent, None, latent_norm, latent_eps)[0]
    keys[row_slots, 0, positions[stored]] = torch.cat((normed, turned), dim=-1)[stored]
    return None if query_norm is None else add_rms_norm(query, None, query_norm, query_eps)[0]


def rotated(
    # [..., P]
    vectors: Tensor,
    # [..., P] float32
    angles: Tensor,
    interleaved: bool,
) -> Tensor:
    """[..., P], the first of all pairs, then the second; rounded once."""
    wide = vectors.float()
    first, second = (wide[..., ::2], wide[..., 1::2]) if interleaved else wide.chunk(2, dim=-1)
    cosine, sine = angles.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1).to(vectors.dtype)


def absorb_queries(
    states: Tensor, expansion: Tensor, table: Tensor, starts: Tensor, latent_width: int, interleaved: bool
) -> Tensor:
    num_all, num_heads, query_width = states.shape
    nope_width, num_tokens = query_width - table.shape[1], num_all // len(starts)
    nope, rope = states.split((nope_width, table.shape[1]), dim=-1)
    absorbed = torch.einsum("nhd,hdl->nhl", nope, expansion[:, :nope_width])
    positions = (starts[:, None] + torch.arange(num_tokens, device=starts.device)).flatten()
    turned = rotated(rope, table[positions.clamp_max(len(table) - 1)][:, None], interleaved)
    assert absorbed.shape[-1] == latent_width
    return torch.cat((absorbed, turned), dim=-1).view(len(starts), num_tokens, num_heads, -1)


def latent_attention(
    queries: Tensor,
    keys: Tensor,
    slots: Tensor,
    starts: Tensor,
    latent_width: int,
    scaling: float,
    out: Tensor | None = None,
) -> Tensor:
    """Waits for the device to learn the longest row."""
    # values as wide as keys, of which the first part is what is asked for
    attended = slot_attention(queries, keys, keys, slots, starts, scaling)
    latents = attended.view(queries.shape)[..., :latent_width]
    return place_for(out, tuple(latents.shape), queries).copy_(latents)


def expand_values(attended: Tensor, expansion: Tensor, value_width: int) -> Tensor:
    return torch.einsum("nhl,hvl->nhv", attended, expansion[:, -value_width:]).flatten(1)


def route_tokens(states: Tensor, weight: Tensor, bias: Tensor, choice: Choice) -> Routing:
    """For any number of tokens."""
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
    return place_pairs(chosen, weights * choice.scaling, num_experts)


def place_pairs(chosen: Tensor, weights: Tensor, num_experts: int) -> Routing:
    """For any number of tokens."""
    by_expert = chosen.flatten().sort(stable=True)
    places = torch.empty_like(by_expert.indices)
    places[by_expert.indices] = torch.arange(len(places), device=places.device)
    experts = torch.arange(num_experts + 1, device=chosen.device)
    return Routing(
        torch.searchsorted(by_expert.values, experts).int(),
        (by_expert.indices // chosen.shape[1]).int(),
        places.view(chosen.shape).int(),
        weights.float(),
    )


def expert_gate_up(
    states: Tensor,
    gate_up: Tensor,
    shared: Tensor | None,
    routing: Routing,
    bias: Tensor | None = None,
    clamped: ClampedGate | None = None,
) -> Tensor:
    """Waits for the device to learn how many tokens an expert has."""
    starts, gated = routing.starts.tolist(), silu_mul if clamped is None else clamped.applied
    parts = [
        gated(_product_of_expert(states[routing.tokens[begin:end]], gate_up, bias, expert)).flatten()
        for expert, (begin, end) in enumerate(pairwise(starts))
    ]
    if shared is not None:
        parts.append(silu_mul(functional.linear(states, shared)).flatten())
    return torch.cat(parts)


def _product_of_expert(rows: Tensor, weights: Tensor, biases: Tensor | None, expert: int) -> Tensor:
    """A bias is added to what was rounded."""
    product = functional.linear(rows, weights[expert])
    return product if biases is None else product + biases[expert]


def expert_down(
    activated: Tensor, down: Tensor, shared: Tensor | None, routing: Routing, bias: Tensor | None = None
) -> Tensor:
    """Waits for the device to learn how many tokens an expert has."""
    starts, width = routing.starts.tolist(), down.shape[2]
    rows = activated[: starts[-1] * width].view(-1, width)
    spans = enumerate(pairwise(starts))
    parts = [_product_of_expert(rows[begin:end], down, bias, expert) for expert, (begin, end) in spans]
    if shared is not None:
        parts.append(functional.linear(activated[starts[-1] * width :].view(-1, shared.shape[1]), shared))
    return torch.cat(parts)


def sum_experts(results: Tensor, routing: Routing) -> Tensor:
    weighted = results[routing.places].float() * routing.weights[..., None]
    output = weighted.sum(1).to(results.dtype)
    num_pairs = routing.places.numel()
    return output if len(results) == num_pairs else output + results[num_pairs:]
