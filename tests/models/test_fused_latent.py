"""The fused operations of latent attention against their twins, and GLM layers against those of transformers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from harness.models.fused.fuse import fusion_obstacle, pack_layer
from harness.models.fused.layer import decoder_layer
from harness.models.fused.operations import Operations, named_operations
from harness.models.fused.rope_table import rope_table
from harness.models.fused.row_groups import GroupedRows, RowGroups
from harness.models.slot_cache import SlotCache
from harness.models.target import TargetModel
from tests.support.fused_rows import DEVICE, normal, same
from tests.support.kernel_rounds import poisoned_allocations
from tests.support.tiny_glm import TOLERANCE, random_glm

LATENT, ROTATED, NOPE, VALUE, NUM_HEADS, CAPACITY = 14, 8, 12, 10, 5, 70
"""Widths that are no powers of two, and more keys than a block holds."""
KINDS = ("triton", "reference")
ERROR = {"rtol": 1e-5, "atol": 1e-5}
"""Of sums of up to 70 products in float32, which are a few units: 70 x 2^-24 = 4e-6 of the terms."""
ROWS = {
    "one token": ([0, 2, 1], [0, 69, 33], 1),
    "four tokens": ([2, 0, 1], [5, 66, 31], 4),
    "rows of one slot": ([1, 1], [0, 17], 17),
    "beyond the capacity": ([1, 0], [68, 3], 4),
}
IN_ROWS = pytest.mark.parametrize("words", ROWS)
INTERLEAVED = pytest.mark.parametrize("interleaved", [True, False], ids=["pairs", "halves"])


def rows(words: str) -> tuple[Tensor, Tensor, int]:
    slots, starts, num_tokens = ROWS[words]
    return torch.tensor(slots, device=DEVICE), torch.tensor(starts, device=DEVICE), num_tokens


def table() -> Tensor:
    angles = torch.arange(CAPACITY)[:, None] / 50.0 ** (torch.arange(ROTATED // 2) / ROTATED)
    return torch.cat((angles.cos(), angles.sin()), dim=-1).float().to(DEVICE)


def on_both(name: str, call) -> list:
    found = []
    for kind in KINDS:
        with poisoned_allocations():
            found.append(call(getattr(named_operations(kind), name)))
    return found


@IN_ROWS
@INTERLEAVED
@pytest.mark.parametrize("query_width", [18, 0], ids=["latent queries", "queries without a latent"])
def test_normalized_and_stored_latents_equal_the_twin(words: str, interleaved: bool, query_width: int):
    slots, starts, num_tokens = rows(words)
    num_all, width = len(slots) * num_tokens, (query_width or 30) + LATENT + ROTATED
    joint, norm = normal(num_all, width, seed=1), normal(LATENT, seed=2)
    query_norm = normal(query_width, seed=3) if query_width else None
    caches = [torch.full((3, 1, CAPACITY, LATENT + ROTATED), 7.0, device=DEVICE) for _ in KINDS]
    queue = iter(caches)
    found, expected = on_both(
        "norm_latents",
        lambda operation: operation(
            joint, query_norm, 1e-6, norm, 1e-5, table(), next(queue), slots, starts, interleaved
        ),
    )
    if query_width:
        torch.testing.assert_close(found, expected, **ERROR)
    else:
        assert found is None and expected is None
    torch.testing.assert_close(*caches, **ERROR)
    written = (caches[0] != 7.0).all(-1).sum()
    assert written == sum(min(CAPACITY - start, num_tokens) for start in ROWS[words][1])


@IN_ROWS
@INTERLEAVED
def test_absorbed_queries_equal_the_twin(words: str, interleaved: bool):
    slots, starts, num_tokens = rows(words)
    starts = starts.clamp(max=CAPACITY - num_tokens)
    # a part of wider rows, as queries without a latent are
    joint = normal(len(slots) * num_tokens, NUM_HEADS * (NOPE + ROTATED) + 6, seed=1)
    states = joint[:, :-6].unflatten(-1, (NUM_HEADS, -1))
    expansion = normal(NUM_HEADS, NOPE + VALUE, LATENT, seed=2)
    found, expected = on_both(
        "absorb_queries", lambda operation: operation(states, expansion, table(), starts, LATENT, interleaved)
    )
    torch.testing.assert_close(found, expected, **ERROR)


@IN_ROWS
@pytest.mark.parametrize("num_heads", [NUM_HEADS, 20])
def test_attention_equals_the_twin(words: str, num_heads: int):
    slots, starts, num_tokens = rows(words)
    keys = normal(3, 1, CAPACITY, LATENT + ROTATED, seed=1)
    for slot in range(3):
        ends = [start + num_tokens for row, start in zip(*ROWS[words][:2], strict=True) if row == slot]
        keys[slot, :, max(ends, default=0) :] = torch.nan
    queries = normal(len(slots), num_tokens, num_heads, LATENT + ROTATED, seed=2)
    found, expected = on_both(
        "latent_attention", lambda operation: operation(queries, keys, slots, starts, LATENT, 0.3)
    )
    assert found.isfinite().all()
    torch.testing.assert_close(found, expected, **ERROR)


def test_attention_in_half_precision_is_as_close_as_its_type():
    slots, starts, num_tokens = rows("four tokens")
    keys = normal(3, 1, CAPACITY, LATENT + ROTATED, seed=1, dtype=torch.float16)
    queries = normal(len(slots), num_tokens, NUM_HEADS, LATENT + ROTATED, seed=2, dtype=torch.float16)
    found, expected = on_both(
        "latent_attention", lambda operation: operation(queries, keys, slots, starts, LATENT, 0.3)
    )
    # weights are rounded, and the result
    torch.testing.assert_close(found, expected, rtol=2 * 2**-10, atol=2**-11 * float(keys.abs().max()))


@pytest.mark.parametrize("num_tokens", [1, 17, 65])
def test_expanded_values_equal_the_twin(num_tokens: int):
    attended, expansion = normal(num_tokens, NUM_HEADS, LATENT), normal(NUM_HEADS, NOPE + VALUE, LATENT, seed=1)
    found, expected = on_both("expand_values", lambda operation: operation(attended, expansion, VALUE))
    torch.testing.assert_close(found, expected, **ERROR)


SLOTS, SPARE, LAYER_CAPACITY = 4, 3, 14
PROMPTS = ([0, 1, 1, SPARE, SPARE], [0, 0, 4, 0, 4], 4)
GROUPS = RowGroups(first=1, size=2)
"""Rows of the prompts that may be read together."""
ROUND = ([0, 1, SPARE], [4, 6, 0], 3)
REQUESTS = {0: 7, 1: 9}
"""Slots with a request, and how many positions of them are filled in the end."""


def glm(kind: str) -> TargetModel:
    causal_lm = random_glm(kind).to(DEVICE)
    target = TargetModel(causal_lm, None)
    for layer in causal_lm.model.layers:
        assert fusion_obstacle(layer, causal_lm.model.rotary_emb) is None
        pack_layer(layer)
    return target


def fused_layers(
    target: TargetModel,
    cache: SlotCache,
    where: tuple,
    states: Tensor,
    operations: Operations,
    groups: RowGroups | None,
) -> Tensor:
    slots, starts = (torch.tensor(values, device=DEVICE) for values in where[:2])
    body, residual = target.causal_lm.model, None
    rotations = rope_table(body.rotary_emb, LAYER_CAPACITY, DEVICE)
    for index, layer in enumerate(body.layers):
        places = (cache.keys[index], cache.values[index], slots, starts)
        grouped = None if groups is None else GroupedRows.of(groups, slots, starts)
        states, residual, _ = decoder_layer(layer, states, residual, rotations, *places, operations, groups=grouped)
    return states + residual


def unfused_layers(target: TargetModel, cache: SlotCache, where: tuple, states: Tensor) -> Tensor:
    slots, starts = (torch.tensor(values, device=DEVICE) for values in where[:2])
    positions = starts[:, None] + torch.arange(where[2], device=DEVICE)
    view = cache.view(slots, positions, int(positions.max()) + 1)
    body = target.causal_lm.model
    rotation = body.rotary_emb(states, positions)
    for layer in body.layers:
        states = layer(states, position_embeddings=rotation, attention_mask=view.mask, past_key_values=view)
    return states


@pytest.mark.parametrize("operations", [named_operations("triton"), named_operations("reference")], ids=KINDS)
@pytest.mark.parametrize(
    ("kind", "groups"),
    [
        ("as published", None),
        ("as published", GROUPS),
        ("groups of experts", None),
        ("two shared experts", None),
        ("queries without a latent", None),
        ("halves rotated", None),
    ],
)
def test_glm_layers_equal_transformers(kind: str, groups: RowGroups | None, operations: Operations):
    target = glm(kind)
    fused, unfused = target.new_cache(SLOTS, LAYER_CAPACITY), target.new_cache(SLOTS, LAYER_CAPACITY)
    for cache in (fused, unfused):
        for keys in cache.keys:
            keys.fill_(1e4)
    for where, together in ((PROMPTS, groups), (ROUND, None)):
        states = normal(len(where[0]), where[2], target.hidden_size, seed=where[2])
        found = fused_layers(target, fused, where, states, operations, together)
        torch.testing.assert_close(found, unfused_layers(target, unfused, where, states), **TOLERANCE)
    for found, wanted in zip(fused.keys, unfused.keys, strict=True):
        for slot, length in REQUESTS.items():
            torch.testing.assert_close(found[slot, :, :length], wanted[slot, :, :length], **TOLERANCE)
            assert (found[slot, :, length:] == 1e4).all()
        assert (found[2] == 1e4).all()


def test_packed_projections_are_views_of_one_weight():
    layer = glm("as published").causal_lm.model.layers[1]
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    pack_layer(layer)
    assert layer.self_attn.q_a_proj.weight.untyped_storage().nbytes() == (18 + LATENT + ROTATED) * 24 * 4
    for name, tensor in layer.state_dict().items():
        same(tensor, before[name])
