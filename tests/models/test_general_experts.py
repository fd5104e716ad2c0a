"""Experts of transformers by kernels of our own: order of pairs, results, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from harness.models.fused.operations import named_operations
from harness.models.general import custom_ops
from harness.models.general.experts import MAX_ROUTED, experts_of, routed_obstacle, run_routed
from tests.support.any_models import tiny_model
from tests.support.fused_rows import normal, same
from tests.support.kernel_rounds import DEVICE, poisoned_allocations

SIZES = [(1, 2, 5), (16, 8, 128), (70, 4, 33)]
"""Tokens, experts of a token, experts; the last are more pairs than a block holds."""


def choices(num_tokens: int, top_k: int, num_experts: int) -> Tensor:
    """[N, k]: of each token some experts, in no order."""
    scores = normal(num_tokens, num_experts, seed=num_tokens)
    return scores.topk(top_k, dim=-1).indices


@pytest.mark.parametrize(("num_tokens", "top_k", "num_experts"), SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_pairs_are_placed_as_the_twin_places_them(num_tokens, top_k, num_experts, dtype):
    chosen, weights = choices(num_tokens, top_k, num_experts), normal(num_tokens, top_k, seed=2, dtype=dtype)
    with poisoned_allocations():
        found = named_operations("triton").place_pairs(chosen, weights, num_experts)
    for part, wanted in zip(
        found, named_operations("reference").place_pairs(chosen, weights, num_experts), strict=True
    ):
        same(part, wanted)


@pytest.mark.parametrize("kind", ["triton", "reference"])
@pytest.mark.parametrize("model_type", ["qwen3_moe", "qwen3_next", "mixtral", "deepseek_v3", "glm4_moe"])
def test_experts_are_those_of_transformers(model_type, kind, monkeypatch):
    """Would catch weights that go to another expert's result, and gates taken for ups."""
    monkeypatch.setattr(custom_ops, "operations_for", lambda device: named_operations(kind))
    experts = experts_of(tiny_model(model_type).to(DEVICE))[0]
    assert routed_obstacle(experts) is None
    states = normal(9, experts.gate_up_proj.shape[2], seed=1)
    chosen, weights = choices(9, 2, len(experts.gate_up_proj)), normal(9, 2, seed=3).abs()
    experts.config._experts_implementation = "eager"
    expected = experts(states, chosen, weights)
    torch.testing.assert_close(run_routed(experts, states, chosen, weights), expected, rtol=1e-5, atol=1e-6)
    # prompts
    many = MAX_ROUTED // 9 + 1
    found = run_routed(experts, states.repeat(many, 1), chosen.repeat(many, 1), weights.repeat(many, 1))
    torch.testing.assert_close(found, expected.repeat(many, 1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("model_type", "why"), [("gpt_oss", "laid out otherwise"), ("nemotron_h", "no two plain")])
def test_experts_that_compute_otherwise_are_refused(model_type, why):
    """Would catch biases, other gates and other layouts that are dropped."""
    assert why in str(routed_obstacle(experts_of(tiny_model(model_type))[0]))


@pytest.mark.gpu
@pytest.mark.parametrize("num_tokens", [1, 16, 64, 256])
@torch.inference_mode()
def test_experts_of_a_real_shape_are_grouped_products_to_rounding(num_tokens):
    """Qwen3-30B-A3B's, in bfloat16; captured, and by other tokens than those of the capture."""
    from transformers import Qwen3MoeConfig
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

    config = Qwen3MoeConfig(hidden_size=2048, moe_intermediate_size=768, num_experts=128, num_experts_per_tok=8)
    with torch.device("cuda"):
        experts = Qwen3MoeExperts(config).to(torch.bfloat16)
    for weight in experts.parameters():
        weight.normal_(0, 0.02)
    states, weights = (normal(num_tokens, size, seed=4).to("cuda", torch.bfloat16) for size in (2048, 8))
    chosen = choices(num_tokens, 8, 128).cuda()
    run_routed(experts, states, chosen, weights)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run_routed(experts, states, chosen, weights)
    chosen.copy_(choices(num_tokens + 1, 8, 128)[1:])
    graph.replay()
    experts.config._experts_implementation = "grouped_mm"
    expected = experts(states, chosen, weights)
    difference = (captured.float() - expected.float()).norm() / expected.float().norm()
    # roundings of gate, up, their product, results and weights
    assert float(difference) < 5 * 2**-8
