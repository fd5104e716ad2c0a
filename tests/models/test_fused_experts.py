"""The fused operations of experts against their twins, and these against transformers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers.models.glm4_moe_lite.modeling_glm4_moe_lite import Glm4MoeLiteMoE

from harness.models.fused.fuse import gate_and_up, pack
from harness.models.fused.layer import expert_feed_forward
from harness.models.fused.operations import named_operations
from harness.models.fused.routing import MAX_TOKENS, Choice, Routing
from tests.support.fused_rows import DEVICE, normal, same
from tests.support.kernel_rounds import poisoned_allocations
from tests.support.tiny_glm import TOLERANCE, random_glm

NUM_TOKENS = pytest.mark.parametrize("num_tokens", [1, 3, 16, 21, 65])
KINDS = ("triton", "reference")
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
