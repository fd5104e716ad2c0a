"""Experts of transformers by kernels of our own: order of pairs, results, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from harness.models.fused.clamped_gate import ClampedGate
from harness.models.fused.operations import named_operations
from harness.models.general import custom_ops
from harness.models.general.experts import MAX_ROUTED, experts_of, make_ready, routed_obstacle, run_routed
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
@pytest.mark.parametrize("model_type", ["qwen3_moe", "qwen3_next", "mixtral", "deepseek_v3", "glm4_moe", "gpt_oss"])
def test_experts_are_those_of_transformers(model_type, kind, monkeypatch):
    """Would catch weights that go to another expert's result, gates taken for ups, and biases that are dropped."""
    monkeypatch.setattr(custom_ops, "operations_for", lambda device: named_operations(kind))
    experts = experts_of(tiny_model(model_type).to(DEVICE))[0]
    for name, parameter in experts.named_parameters():
        # gates and ups of gpt-oss reach beyond their limit of 7
        if name == "gate_up_proj_bias":
            parameter.data = normal(*parameter.shape, seed=5, scale=6.0)
        elif name.endswith("bias"):
            parameter.data = normal(*parameter.shape, seed=6)
    assert routed_obstacle(experts) is None
    states = normal(9, experts.config.hidden_size, seed=1)
    chosen, weights = choices(9, 2, len(experts.gate_up_proj)), normal(9, 2, seed=3).abs()
    experts.config._experts_implementation = "eager"
    expected = experts(states, chosen, weights)
    make_ready(experts)
    torch.testing.assert_close(experts(states, chosen, weights), expected, rtol=1e-5, atol=2e-5)
    torch.testing.assert_close(run_routed(experts, states, chosen, weights), expected, rtol=1e-5, atol=1e-6)
    # prompts
    many = MAX_ROUTED // 9 + 1
    found = run_routed(experts, states.repeat(many, 1), chosen.repeat(many, 1), weights.repeat(many, 1))
    torch.testing.assert_close(found, expected.repeat(many, 1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("clamped", [None, ClampedGate(1.702, 7.0)], ids=["silu", "clamped"])
@pytest.mark.parametrize("has_bias", [False, True], ids=["no bias", "biases"])
def test_products_with_biases_and_gates_round_as_their_twins(has_bias, clamped):
    """In half precision. Would catch a bias that is added before the product is rounded, or to another row."""
    dtype, num_experts, hidden_size, width = torch.float16, 4, 72, 40
    chosen, weights = choices(19, 2, num_experts), normal(19, 2, seed=2).abs()
    routing = named_operations("reference").place_pairs(chosen, weights, num_experts)
    gate_up, down = (
        normal(num_experts, *sizes, seed=3, scale=0.2, dtype=dtype)
        for sizes in ((2 * width, hidden_size), (hidden_size, width))
    )
    sizes = (2 * width, hidden_size)
    biases = [normal(num_experts, size, seed=4, scale=5, dtype=dtype) if has_bias else None for size in sizes]
    states, found = normal(19, hidden_size, seed=1, dtype=dtype), []
    for kind in ("triton", "reference"):
        operations = named_operations(kind)
        with poisoned_allocations():
            activated = operations.expert_gate_up(states, gate_up, None, routing, biases[0], clamped)
            found.append((activated, operations.expert_down(activated, down, None, routing, biases[1])))
    for mine, twin in zip(*found, strict=True):
        # a sum in another order may round to a neighbour, and that may go on through the gate
        assert (mine != twin).double().mean() < 0.05
        torch.testing.assert_close(mine, twin, rtol=4 * 2**-10, atol=4 * 2**-10)


def test_experts_that_compute_otherwise_are_refused(monkeypatch):
    """Would catch other gates and layouts that are run as if they were known."""
    assert "no two plain" in str(routed_obstacle(experts_of(tiny_model("nemotron_h"))[0]))
    experts = experts_of(tiny_model("qwen3_moe"))[0]
    experts.down_proj.data = experts.down_proj.data.transpose(1, 2).contiguous().transpose(1, 2)
    assert "no two plain" in str(routed_obstacle(experts))
    experts = experts_of(tiny_model("gpt_oss"))[0]
    experts.down_proj_bias.data = experts.down_proj_bias.data.half()
    assert "of several types" in str(routed_obstacle(experts))
    experts = experts_of(tiny_model("gpt_oss"))[0]
    monkeypatch.setattr(type(experts), "_apply_gate", lambda self, gate_up: gate_up[..., ::2] * gate_up[..., 1::2])
    assert "neither silu(gate) * up nor that of gpt-oss" in str(routed_obstacle(experts))


def real_experts(model_type: str) -> tuple[Any, int, int, int]:
    """(experts with random weights on the GPU, hidden size, number of experts, of a token)."""
    from transformers import GptOssConfig, Qwen3MoeConfig
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

    sizes = (2880, 32, 4) if model_type == "gpt_oss" else (2048, 128, 8)
    with torch.device("cuda"):
        if model_type == "gpt_oss":
            experts = GptOssExperts(GptOssConfig(hidden_size=2880, intermediate_size=2880, num_local_experts=32))
        else:
            config = Qwen3MoeConfig(hidden_size=2048, moe_intermediate_size=768, num_experts=128)
            experts = Qwen3MoeExperts(config)
    for name, weight in experts.to(torch.bfloat16).named_parameters():
        weight.data.normal_(0, 1.0 if name.endswith("bias") else 0.02)
    make_ready(experts)
    return experts, *sizes


@pytest.mark.gpu
@pytest.mark.parametrize("num_tokens", [1, 16, 64, 256])
@pytest.mark.parametrize("model_type", ["qwen3_moe", "gpt_oss"])
@torch.inference_mode()
def test_experts_of_a_real_shape_are_grouped_products_to_rounding(model_type, num_tokens):
    """Those of Qwen3-30B-A3B and gpt-oss-20b, in bfloat16; captured, and by other tokens than those of the capture."""
    experts, hidden_size, num_experts, top_k = real_experts(model_type)
    assert routed_obstacle(experts) is None
    states, weights = (normal(num_tokens, size, seed=4).to("cuda", torch.bfloat16) for size in (hidden_size, top_k))
    chosen = choices(num_tokens, top_k, num_experts).cuda()
    run_routed(experts, states, chosen, weights)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run_routed(experts, states, chosen, weights)
    chosen.copy_(choices(num_tokens + 1, top_k, num_experts)[1:])
    graph.replay()
    experts.config._experts_implementation = "grouped_mm"
    expected = experts(states, chosen, weights)
    difference = (captured.float() - expected.float()).norm() / expected.float().norm()
    # roundings of gate, up, their product, results and weights
    assert float(difference) < 5 * 2**-8
