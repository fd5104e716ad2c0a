"""The fused operations of latent attention and of experts against their twins, and GLM layers against transformers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers.models.glm4_moe_lite.modeling_glm4_moe_lite import Glm4MoeLiteMoE

from harness.models.fused.fuse import fusion_obstacle, gate_and_up, pack, pack_layer
from harness.models.fused.layer import decoder_layer, expert_feed_forward
from harness.models.fused.operations import Operations, named_operations
from harness.models.fused.rope_table import rope_table
from harness.models.fused.routing import MAX_TOKENS, Choice, Routing
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


NUM_TOKENS = pytest.mark.parametrize("num_tokens", [1, 3, 16, 21, 65])
CHOICES = {
    "no groups": (6, Choice(2, 1, 1, True, 1.8)),
    "one of two groups": (6, Choice(2, 2, 1, True, 1.8)),
    "two of three groups": (12, Choice(3, 3, 2, True, 1.0)),
    "weights as scored": (5, Choice(4, 1, 1, False, 2.5)),
}


def both(name: str):
    return (getattr(named_operations(kind), name) for kind in KINDS)


def moe_of(kind: str = "as published", dtype: torch.dtype = torch.float32) -> Glm4MoeLiteMoE:
    moe = random_glm(kind).model.layers[1].mlp.to(DEVICE)
    for parameter in moe.parameters():  # not the bias, a buffer
        parameter.data = parameter.data.to(dtype)
    pack(gate_and_up(moe.shared_experts))
    return moe


def routing_of(chosen: Tensor, num_experts: int) -> Routing:
    """Of experts [N, k], with weights that differ."""
    chosen = chosen.sort(-1).values
    order = chosen.flatten().argsort(stable=True)
    counts = torch.bincount(chosen.flatten(), minlength=num_experts)
    starts = torch.cat((counts.new_zeros(1), counts.cumsum(0)))
    weights = torch.rand(chosen.shape, generator=torch.Generator().manual_seed(3))
    routing = Routing(starts.int(), (order // chosen.shape[1]).int(), order.argsort().view(chosen.shape).int(), weights)
    return Routing(*(tensor.to(DEVICE) for tensor in routing))


def random_routing(num_tokens: int, num_experts: int, top_k: int) -> Routing:
    generator = torch.Generator().manual_seed(num_tokens)
    chosen = [torch.randperm(num_experts, generator=generator)[:top_k] for _ in range(num_tokens)]
    return routing_of(torch.stack(chosen), num_experts)


@NUM_TOKENS
@pytest.mark.parametrize("words", CHOICES)
def test_routing_equals_its_twin(words: str, num_tokens: int):
    num_experts, choice = CHOICES[words]
    states, weight = normal(num_tokens, 150, seed=1), normal(num_experts, 150, seed=2, scale=0.1)
    bias = normal(num_experts, seed=3, scale=0.3)
    kernel, twin = both("route_tokens")
    with poisoned_allocations():
        found = kernel(states, weight, bias, choice)
    expected = twin(states, weight, bias, choice)
    for part, wanted in zip(found[:3], expected[:3], strict=True):
        same(part, wanted)
    torch.testing.assert_close(found.weights, expected.weights)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", ["as published", "groups of experts"])
def test_routing_equals_that_of_transformers(kind: str, model: str):
    router = moe_of(model).gate
    states = normal(40, 24, seed=1)
    routing = named_operations(kind).route_tokens(
        states, router.weight, router.e_score_correction_bias, Choice.of(router)
    )
    _, weights, chosen = router(states)
    expected = torch.zeros(40, 6, device=DEVICE).scatter_(1, chosen, weights)
    places = torch.arange(routing.tokens.numel(), device=DEVICE, dtype=torch.int32)
    expert_at = torch.searchsorted(routing.starts, places, right=True) - 1
    found = torch.zeros(40, 6, device=DEVICE).scatter_(1, expert_at[routing.places], routing.weights)
    torch.testing.assert_close(found, expected)
    assert (routing.tokens[routing.places] == torch.arange(40, device=DEVICE)[:, None]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_without_numbers_leaves_the_others_alone(kind: str):
    moe, states = moe_of(), normal(5, 24, seed=1)
    expected = expert_feed_forward(moe, states, kind)
    states[2] = torch.nan
    found = expert_feed_forward(moe, states, kind)
    assert found[2].isnan().all()
    kept = [0, 1, 3, 4]
    # torch's products, of which the reference is made, round differently for another number of an expert's tokens
    tolerance = 1e-6 if kind == "reference" else 0
    torch.testing.assert_close(found[kept], expected[kept], rtol=0, atol=tolerance)


@NUM_TOKENS
@pytest.mark.parametrize("shared_width", [0, 40], ids=["no shared expert", "a shared expert"])
def test_products_equal_their_twins(shared_width: int, num_tokens: int):
    """Widths that are no multiples of a tile, experts without tokens and with more than a tile holds."""
    width, hidden, num_experts = 40, 72, 4
    routing = random_routing(num_tokens, num_experts - 1, 2)
    routing = routing._replace(starts=torch.cat((routing.starts, routing.starts[-1:])))
    states, gate_up = normal(num_tokens, hidden, seed=1), normal(num_experts, 2 * width, hidden, seed=2, scale=0.2)
    down, shared_down = normal(num_experts, hidden, width, seed=4), normal(hidden, shared_width, seed=5)
    shared = normal(2 * shared_width, hidden, seed=3, scale=0.2)
    gate_up[-1] = down[-1] = torch.nan  # of the expert to which no token is routed
    options = (shared, shared_down) if shared_width else (None, None)
    activated = []
    for kind in KINDS:
        operations = named_operations(kind)
        with poisoned_allocations():
            activated.append(operations.expert_gate_up(states, gate_up, options[0], routing))
    torch.testing.assert_close(*activated, rtol=1e-5, atol=1e-5)
    results = [named_operations(kind).expert_down(activated[0], down, options[1], routing) for kind in KINDS]
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-4)
    sums = [named_operations(kind).sum_experts(results[0], routing) for kind in KINDS]
    torch.testing.assert_close(*sums, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", ["as published", "groups of experts", "two shared experts"])
def test_experts_equal_transformers(kind: str, model: str):
    moe, states = moe_of(model), normal(19, 24, seed=1)
    torch.testing.assert_close(expert_feed_forward(moe, states, kind), moe(states[None])[0], **TOLERANCE)


def test_half_precision_rounds_as_transformers_does():
    moe, states = moe_of(dtype=torch.float16), normal(7, 24, seed=1, dtype=torch.float16)
    found, twin = (expert_feed_forward(moe, states, kind) for kind in KINDS)
    expected = moe(states[None])[0]
    unit = torch.finfo(torch.float16).eps
    scale = float(expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=4 * unit, atol=2 * unit * scale)
    torch.testing.assert_close(twin, expected, rtol=4 * unit, atol=2 * unit * scale)


def test_more_tokens_than_the_kernels_take_run_as_transformers_has_them():
    moe, states = moe_of(), normal(MAX_TOKENS + 1, 24, seed=1)
    same(expert_feed_forward(moe, states, "triton"), moe(states[None])[0])


def test_the_routing_kernel_refuses_more_tokens_than_it_holds():
    moe, states = moe_of(), normal(MAX_TOKENS + 1, 24, seed=1)
    with pytest.raises(ValueError, match=f"1 to {MAX_TOKENS} tokens, found {MAX_TOKENS + 1}"):
        named_operations("triton").route_tokens(
            states, moe.gate.weight, moe.gate.e_score_correction_bias, Choice.of(moe.gate)
        )
