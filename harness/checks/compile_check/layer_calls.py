"""Calls of the fused operations of decoder layers whose kernels are compiled, at the sizes of models.

This module does not know for which GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch

from harness.checks.compile_check.core_calls import CAPACITY, NUM_REQUESTS, VOCAB_SIZE, name_of
from harness.engine.compile_ahead.compile import Launch
from harness.models.fp8_linear import FP8
from harness.models.fused.absorb_queries import absorb_queries
from harness.models.fused.add_rms_norm import add_rms_norm, add_shares
from harness.models.fused.expand_values import expand_values
from harness.models.fused.expert_down import expert_down
from harness.models.fused.expert_gate_up import expert_gate_up
from harness.models.fused.gated_activation import silu_mul
from harness.models.fused.join_embedded import join_embedded
from harness.models.fused.latent_attention import latent_attention
from harness.models.fused.linear import tiling_of
from harness.models.fused.norm_latents import norm_latents
from harness.models.fused.rotate_and_store import rotate_and_store
from harness.models.fused.route_tokens import route_tokens
from harness.models.fused.routing import Choice
from harness.models.fused.skinny_linear import launch
from harness.models.fused.slot_attention import slot_attention
from harness.models.fused.sum_experts import sum_experts
from harness.models.fused.tilings import COLUMNS
from harness.models.fused.tree_rows import TreeRows
from harness.models.fused.widen import widen

MANY_ROWS = 64
"""So many that no row's keys are shared out over programs."""


class LayerSizes(NamedTuple):
    """A decoder layer."""

    hidden_size: int
    num_heads: int
    num_key_heads: int
    width: int
    intermediate_size: int
    has_head_norms: bool = False


class ExpertSizes(NamedTuple):
    """The experts of a layer, one of which all tokens share."""

    hidden_size: int
    num_experts: int
    width: int
    choice: Choice


class LatentSizes(NamedTuple):
    """The latent attention of a layer."""

    num_heads: int
    query_latent: int
    latent: int
    rotated: int
    nope: int
    value: int


LLAMA_3_8B = LayerSizes(4096, 32, 8, 128, 14336)
QWEN_3_8B = LayerSizes(4096, 32, 8, 128, 12288, has_head_norms=True)
BUILT_IN_TARGET = LayerSizes(256, 4, 2, 64, 704)
BUILT_IN_DRAFT_MODEL = LayerSizes(128, 2, 1, 64, 384)
GLM_47_FLASH = ExpertSizes(2048, 64, 1536, Choice(4, 1, 1, True, 1.8))
IN_GROUPS = ExpertSizes(512, 24, 128, Choice(4, 6, 3, True, 1.0))
GLM_47_FLASH_LATENTS = LatentSizes(20, 768, 512, 64, 192, 256)
NUMS_OF_SHARES = (2, 4)
"""That a product may leave to be summed."""


def _layer(
    sizes: LayerSizes, dtype: torch.dtype, num_tokens: int, num_rows: int = NUM_REQUESTS, are_trees: bool = False
) -> None:
    """Every fused operation of a decoder layer."""
    hidden_size, num_heads, num_key_heads, width, intermediate_size, has_head_norms = sizes
    count = num_rows * num_tokens
    states, norm = torch.empty(count, hidden_size, dtype=dtype), torch.empty(width, dtype=dtype)
    add_rms_norm(states, None, states[0], 1e-5)
    add_rms_norm(states, states, states[0], 1e-5)
    silu_mul(torch.empty(count, 2 * intermediate_size, dtype=dtype))
    for num_shares in NUMS_OF_SHARES:
        shares = torch.empty(num_shares, count, hidden_size)
        add_rms_norm(shares, states, states[0], 1e-5)
        add_shares(shares, states)
    add_shares(states, states)
    token_ids, weight = torch.zeros(count, dtype=torch.int64), torch.empty(hidden_size, dtype=dtype)
    both = (weight, 1e-5), (weight, 1e-5)
    for norms, positions in ((None, None), (both, None), (both, token_ids)):
        join_embedded(token_ids, states, states, norms, positions)
    cache, rows = torch.empty(1, num_key_heads, CAPACITY, width, dtype=dtype), torch.zeros(num_rows, dtype=torch.int64)
    qkv, table = torch.empty(count, (num_heads + 2 * num_key_heads) * width, dtype=dtype), torch.empty(CAPACITY, width)
    places = torch.zeros(num_rows, num_tokens, dtype=torch.int64) if are_trees else None
    tree = None if places is None else TreeRows(places, places, num_tokens)
    head_norm = norm if has_head_norms else None
    given = (table, cache, cache, rows, rows, head_norm, head_norm, 1e-6, places)
    rotate_and_store(qkv, *given)
    queries = rotate_and_store(torch.empty(NUMS_OF_SHARES[0], *qkv.shape), *given)
    slot_attention(queries, cache, cache, rows, rows, width**-0.5, tree)


def _cache_in_fp8(sizes: LayerSizes, dtype: torch.dtype, num_tokens: int) -> None:
    """What writes and reads keys and values of 8 bits."""
    cache = torch.empty(1, sizes.num_key_heads, CAPACITY, sizes.width, dtype=FP8)
    rows, table = torch.zeros(NUM_REQUESTS, dtype=torch.int64), torch.empty(CAPACITY, sizes.width)
    width = (sizes.num_heads + 2 * sizes.num_key_heads) * sizes.width
    shares = torch.empty(NUMS_OF_SHARES[0], NUM_REQUESTS * num_tokens, width)
    queries = rotate_and_store(shares, table, cache, cache, rows, rows, dtype=dtype)
    slot_attention(queries, cache, cache, rows, rows, sizes.width**-0.5)


def _products(sizes: LayerSizes, dtype: torch.dtype, num_tokens: int) -> None:
    """Every product of a decoder layer and of its logits that is not torch's: with a bias and without one, and logits
    that are written with gaps too, also of an odd vocabulary."""
    hidden_size, num_heads, num_key_heads, width, intermediate_size, _ = sizes
    qkv_size = (num_heads + 2 * num_key_heads) * width
    for in_features, num_rows, gated, may_split in (
        (hidden_size, qkv_size, False, True),
        (num_heads * width, hidden_size, False, True),
        (hidden_size, 2 * intermediate_size, True, False),
        (intermediate_size, hidden_size, False, True),
        (hidden_size, VOCAB_SIZE, False, False),
        (hidden_size, VOCAB_SIZE - 1, False, False),
    ):
        states = torch.empty(num_tokens, in_features, dtype=dtype)
        weight, bias = torch.empty(num_rows, in_features, dtype=dtype), torch.empty(num_rows, dtype=dtype)
        tiling = tiling_of(states, weight, gated, may_split)
        if tiling is not None:
            launch(states, weight, None, tiling, gated)
            launch(states, weight, bias, tiling, gated)
            if not gated and not may_split:
                launch(states, weight, None, tiling, gated, out=torch.empty(num_tokens, 3, num_rows, dtype=dtype)[:, 1])
        codes = torch.empty(num_rows, in_features, dtype=FP8)
        tiling = tiling_of(states, codes, gated, may_split)
        if tiling is not None:
            launch(states, codes, None, tiling, gated, torch.empty(num_rows))


def _experts(sizes: ExpertSizes, dtype: torch.dtype, num_tokens: int) -> None:
    """Every fused operation of experts."""
    hidden_size, num_experts, width, choice = sizes
    states, router = (torch.empty(count, hidden_size, dtype=dtype) for count in (num_tokens, num_experts))
    routing = route_tokens(states, router, torch.empty(num_experts), choice)
    gate_up = torch.empty(num_experts, 2 * width, hidden_size, dtype=dtype)
    activated = expert_gate_up(states, gate_up, gate_up[0], routing)
    down = torch.empty(num_experts, hidden_size, width, dtype=dtype)
    sum_experts(expert_down(activated, down, down[0], routing), routing)


def _latents(sizes: LatentSizes, dtype: torch.dtype, num_tokens: int) -> None:
    """Every fused operation of latent attention."""
    count, width = NUM_REQUESTS * num_tokens, sizes.latent + sizes.rotated
    norms = torch.empty(sizes.query_latent, dtype=dtype), torch.empty(sizes.latent, dtype=dtype)
    joint, table = torch.empty(count, sizes.query_latent + width, dtype=dtype), torch.empty(CAPACITY, sizes.rotated)
    keys, rows = torch.empty(1, 1, CAPACITY, width, dtype=dtype), torch.zeros(NUM_REQUESTS, dtype=torch.int64)
    norm_latents(joint, norms[0], 1e-6, norms[1], 1e-6, table, keys, rows, rows, True)
    states = torch.empty(count, sizes.num_heads, sizes.nope + sizes.rotated, dtype=dtype)
    expansion = torch.empty(sizes.num_heads, sizes.nope + sizes.value, sizes.latent, dtype=dtype)
    queries = absorb_queries(states, expansion, table, rows, sizes.latent, True)
    attended = latent_attention(queries, keys, rows, rows, sizes.latent, 256**-0.5)
    expand_values(attended.flatten(0, 1), expansion, sizes.value)


def layers(dtype: torch.dtype) -> Iterator[Launch]:
    """The decoder layers that are compiled for every type and target."""
    name = name_of(dtype)
    yield f"Llama-3-8B, 4 tokens, {name}", partial(_layer, LLAMA_3_8B, dtype, 4)
    yield f"GLM-4.7-Flash, 64 tokens, {name}", partial(_experts, GLM_47_FLASH, dtype, 64)
    yield f"GLM-4.7-Flash, 4 tokens, {name}", partial(_latents, GLM_47_FLASH_LATENTS, dtype, 4)
    yield f"weights of 8 bits, {name}", partial(widen, torch.empty(8, 4096, dtype=FP8), torch.empty(8), dtype)


def products(dtype: torch.dtype) -> Iterator[Launch]:
    """Products of a few tokens, with every number of columns."""
    for pair in COLUMNS:
        words = f"products, {sum(pair)} tokens, {str(dtype).removeprefix('torch.')}"
        yield words, partial(_products, LLAMA_3_8B, dtype, sum(pair))


def built_in_layers(dtype: torch.dtype) -> Iterator[Launch]:
    """Those of the built-in models."""
    yield "built-in target, 4 tokens", partial(_layer, BUILT_IN_TARGET, dtype, 4)
    yield "built-in draft model, 1 token", partial(_layer, BUILT_IN_DRAFT_MODEL, dtype, 1)


def other_layers(dtype: torch.dtype) -> Iterator[Launch]:
    """Norms of heads, and numbers of tokens and rows that change the code of a kernel."""
    yield "Llama-3-8B, 1 token", partial(_layer, LLAMA_3_8B, dtype, 1)
    yield "Llama-3-8B, cache of 8 bits", partial(_cache_in_fp8, LLAMA_3_8B, dtype, 4)
    yield "Llama-3-8B, 9 tokens", partial(_layer, LLAMA_3_8B, dtype, 9)
    yield f"Llama-3-8B, {MANY_ROWS} rows", partial(_layer, LLAMA_3_8B, dtype, 4, MANY_ROWS)
    yield "Llama-3-8B, 8 groups of 16 tokens of prompts", partial(_layer, LLAMA_3_8B, dtype, 16, 8)
    yield "Qwen3-8B, 6 tokens", partial(_layer, QWEN_3_8B, dtype, 6)
    yield "Llama-3-8B, trees of 4 tokens", partial(_layer, LLAMA_3_8B, dtype, 4, are_trees=True)
    yield "Llama-3-8B, trees of 17 tokens", partial(_layer, LLAMA_3_8B, dtype, 17, MANY_ROWS, are_trees=True)
    yield "GLM-4.7-Flash, 128 tokens of experts", partial(_experts, GLM_47_FLASH, dtype, 128)
    yield "experts in groups, 16 tokens", partial(_experts, IN_GROUPS, dtype, 16)
    yield "GLM-4.7-Flash, 1 token", partial(_latents, GLM_47_FLASH_LATENTS, dtype, 1)
    yield "GLM-4.7-Flash, 128 tokens of a row", partial(_latents, GLM_47_FLASH_LATENTS, dtype, 128)
