"""The products of experts: both equal the plain loop, and neither needs the host."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from harness.models.experts import EVERY_EXPERT_NOTE, every_expert, runs_grouped, slots_experts
from harness.models.target import TargetModel
from tests.support.tiny_glm import random_glm
from tests.support.tiny_models import random_target


@pytest.fixture
def experts():
    """The experts of one layer, expert by expert as transformers runs them."""
    return random_glm().model.layers[1].mlp.experts


def routed(num_tokens, seed=0):
    """States [N, 24], two of six experts for each token, and their weights."""
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(num_tokens, 24, generator=generator)
    chosen = torch.stack([torch.randperm(6, generator=generator)[:2] for _ in range(num_tokens)])
    return states, chosen, torch.rand(num_tokens, 2, generator=generator)


@pytest.mark.parametrize("product", [slots_experts, every_expert], ids=["grouped", "every expert"])
@pytest.mark.parametrize("num_tokens", [1, 2, 63], ids=["one token", "most experts idle", "all experts hit"])
def test_products_equal_the_loop_over_experts(experts, product, num_tokens):
    states, chosen, weights = routed(num_tokens)
    # sums of 24 and 16 terms in another order
    torch.testing.assert_close(product(experts, states, chosen, weights), experts(states, chosen, weights))


def test_an_expert_that_was_not_chosen_may_overflow(experts):
    states, chosen, weights = routed(8)
    chosen = chosen.clamp(max=4)
    chosen[:, 1] = (chosen[:, 0] + 1) % 5
    expected = experts(states, chosen, weights)
    experts.gate_up_proj[5] = 1e30
    torch.testing.assert_close(every_expert(experts, states, chosen, weights), expected)


@pytest.mark.parametrize("grouped", [True, False], ids=["grouped", "every expert"])
def test_products_ask_for_no_value_of_a_tensor(monkeypatch, grouped):
    monkeypatch.setattr("harness.models.experts.runs_grouped", lambda *_: grouped)
    # in bfloat16, the only dtype for which torch knows the shapes of a grouped product
    experts = random_glm().model.layers[1].mlp.experts.to("meta", torch.bfloat16)
    states, chosen, weights = (tensor.to("meta") for tensor in routed(5))
    inputs = (states.bfloat16(), chosen, weights)
    assert slots_experts(experts, *inputs).shape == (5, 24)
    with pytest.raises(NotImplementedError):
        experts(*inputs)


@pytest.mark.parametrize(
    ("device", "dtype", "width", "capability", "expected"),
    [
        pytest.param("cpu", torch.float32, 24, None, True, id="any dtype on a CPU"),
        pytest.param("cpu", torch.float32, 10, None, False, id="rows that are not aligned"),
        pytest.param("cuda", torch.bfloat16, 24, (9, 0), True, id="bfloat16 on Hopper"),
        pytest.param("cuda", torch.bfloat16, 24, (10, 3), True, id="bfloat16 on Blackwell"),
        pytest.param("cuda", torch.bfloat16, 24, (8, 0), False, id="Ampere"),
        pytest.param("cuda", torch.float16, 24, (9, 0), False, id="float16"),
        pytest.param("cuda", torch.float32, 24, (9, 0), False, id="float32"),
    ],
)
def test_the_grouped_product_is_taken_where_it_does_not_wait(monkeypatch, device, dtype, width, capability, expected):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    weight = SimpleNamespace(
        device=torch.device(device), dtype=dtype, shape=(6, 32, width), element_size=lambda: dtype.itemsize
    )
    assert runs_grouped(weight, weight) is expected


def test_an_unaligned_width_runs_every_expert_and_says_so():
    """torch refuses it in a grouped product."""
    causal_lm = random_glm(moe_intermediate_size=10, hidden_size=26)
    experts = causal_lm.model.layers[1].mlp.experts
    _, chosen, weights = routed(7)
    states = torch.randn(7, 26, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(slots_experts(experts, states, chosen, weights), experts(states, chosen, weights))
    assert TargetModel(causal_lm, None).fallbacks == (EVERY_EXPERT_NOTE,)
    assert TargetModel(random_glm(), None).fallbacks == () == random_target().fallbacks


def test_rounds_too_large_for_the_kernels_of_experts_are_reported():
    target = TargetModel(random_glm(), None)
    assert target.fuse() is None
    assert target.round_fallbacks(128) == ()
    assert "more than 128 tokens (here up to 129)" in target.round_fallbacks(129)[0]
