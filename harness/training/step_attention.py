"""Attention of the steps of an unrolled chain: causal over the pairs of step 0, and to a pair's own of the steps after.

A mask of [P, (s + 1) P] numbers says the same, and costs the whole product of which half of one block and s diagonals
count. Here the causal part is flash attention; the diagonals join it by its log of sums. Backwards flash attention is
given the joined result and the joined sums, from which the gradients of its part follow as they stand.

Shapes: B rows, P pairs of a row, s steps after step 0, H query heads, G of them for one key head, D width of a head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from harness.models.attention import AttendingMask, slots_attention


class StepAttention(AttendingMask):
    """What the pairs of the next step see; keeps the keys and values of all steps so far."""

    def __init__(self) -> None:
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    @torch.compiler.disable
    def attend(self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        # what autocast does for torch's own attention
        query, key = query.to(value.dtype), key.to(value.dtype)
        self._keys.append(key)
        self._values.append(value)
        keys, values = self._keys, self._values
        if len(keys) == 1:
            grouped = query.shape[1] != key.shape[1]
            return functional.scaled_dot_product_attention(
                query, key, value, scale=scaling, is_causal=True, enable_gqa=grouped
            )
        if has_flash(query, key, value):
            own = [tensor for pair in zip(keys[1:], values[1:], strict=True) for tensor in pair]
            scale = query.shape[-1] ** -0.5 if scaling is None else scaling
            attended: Tensor = _Joined.apply(scale, query, keys[0], values[0], *own)
            return attended
        mask = step_mask(query.shape[2], len(keys) - 1, query.dtype, query.device)
        all_keys, all_values = torch.cat(keys, dim=2), torch.cat(values, dim=2)
        return slots_attention(torch.nn.Identity(), query, all_keys, all_values, mask, scaling)[0].transpose(1, 2)


def step_mask(num_pairs: int, step: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[1, 1, P, (step + 1) P] additive mask of a step: causal over step 0, then one diagonal for each later step."""
    causal = torch.ones(num_pairs, num_pairs, dtype=torch.bool, device=device).tril()
    own = torch.eye(num_pairs, dtype=torch.bool, device=device)
    seen = torch.cat([causal, *[own] * step], dim=1)
    return torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(~seen, float("-inf"))[None, None]


def has_flash(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether flash attention takes these; the mask of numbers takes all."""
    if key.shape[-1] != value.shape[-1]:
        return False
    if query.device.type != "cuda":
        return query.device.type == "cpu"
    # keys and values are repeated, so that they are like the queries
    given = torch.backends.cuda.SDPAParams(query, query, query, None, 0.0, True, False)
    return query.shape[-1] % 8 == 0 and torch.backends.cuda.can_use_flash_attention(given)


class _Joined(torch.autograd.Function):
    """softmax over the causal keys of step 0 and the own keys of later steps together."""

    @staticmethod
    def forward(ctx: Any, scale: float, query: Tensor, key: Tensor, value: Tensor, *own: Tensor) -> Tensor:
        """query [B, H, P, D]; key, value of step 0 and `own` (key, value of each later step) [B, H / G, P, D]."""
        groups = query.shape[1] // key.shape[1]
        key, value = (tensor.repeat_interleave(groups, dim=1) for tensor in (key, value))
        causal, lse, more = _flash(query, key, value, scale)
        scores = [scale * _dot(_grouped(query, groups), each[:, :, None]).flatten(1, 2) for each in own[::2]]
        joint = torch.stack([lse, *scores]).logsumexp(0)
        total = causal.float() * (lse - joint).exp()[..., None]
        for score, each in zip(scores, own[1::2], strict=True):
            total += _spread((score - joint).exp(), each, groups)
        attended = total.to(query.dtype)
        ctx.save_for_backward(query, key, value, attended, joint, *scores, *own)
        ctx.scale, ctx.groups, ctx.more = scale, groups, more
        return attended

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, attended, joint, *rest = ctx.saved_tensors
        scale, groups, number = ctx.scale, ctx.groups, len(rest) // 3
        grad = grads[0].to(query.dtype)
        of_query, of_key, of_value = _flash_backward(grad, query, key, value, attended, joint, ctx.more, scale)
        of_query = of_query.float()
        delta = _dot(grad, attended)
        own: list[Tensor] = []
        for score, each_key, each_value in zip(rest[:number], rest[number::2], rest[number + 1 :: 2], strict=True):
            share = (score - joint).exp()
            reached = _dot(_grouped(grad, groups), each_value[:, :, None]).flatten(1, 2)
            of_score = scale * share * (reached - delta)
            of_query += _spread(of_score, each_key, groups)
            own.append((_grouped(of_score, groups)[..., None] * _grouped(query, groups)).sum(2).to(key.dtype))
            own.append((_grouped(share, groups)[..., None] * _grouped(grad, groups)).sum(2).to(key.dtype))
        summed = (_grouped(tensor, groups).float().sum(2).to(key.dtype) for tensor in (of_key, of_value))
        return None, of_query.to(query.dtype), *summed, *own


def _grouped(tensor: Tensor, groups: int) -> Tensor:
    """[B, H, ...] -> [B, H / G, G, ...]."""
    return tensor.unflatten(1, (-1, groups))


def _dot(first: Tensor, second: Tensor) -> Tensor:
    """[..., D] both -> [...] float32."""
    return (first.float() * second.float()).sum(-1)


def _spread(share: Tensor, of_pairs: Tensor, groups: int) -> Tensor:
    """[B, H, P] shares of [B, H / G, P, D] -> [B, H, P, D] float32."""
    return (_grouped(share, groups)[..., None] * of_pairs[:, :, None]).flatten(1, 2)


def _flash(query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor, tuple[Any, ...]]:
    """Causal attention, the log of its sums [B, H, P] float32, and what going backwards wants beside these."""
    if query.device.type == "cpu":
        on_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        attended, lse = on_cpu(query, key, value, 0.0, True, scale=scale)
        return attended, lse, ()
    attended, lse, *more, _ = torch.ops.aten._scaled_dot_product_flash_attention(
        query, key, value, 0.0, True, False, scale=scale
    )
    return attended, lse, tuple(more)


def _flash_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attended: Tensor,
    lse: Tensor,
    more: tuple[Any, ...],
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value."""
    given: tuple[Any, ...] = (grad, query, key, value, attended, lse)
    if query.device.type == "cpu":
        on_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        found: tuple[Tensor, Tensor, Tensor] = on_cpu(*given, 0.0, True, scale=scale)
        return found
    *lengths, seed, offset = more
    found = torch.ops.aten._scaled_dot_product_flash_attention_backward(
        *given, *lengths, 0.0, True, seed, offset, scale=scale
    )
    return found
