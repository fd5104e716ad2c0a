"""Packed projections: the layer as it was goes on working, nothing is held twice, and what fell apart is noticed."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from harness.models.fused.fuse import gate_and_up, pack, pack_layer, packed, packing_obstacle, query_key_value
from tests.support.tiny_models import random_causal_lm


def tiny_layer(kind: str = "llama", **changes: Any) -> Any:
    return random_causal_lm(kind, num_hidden_layers=1, **changes).model.layers[0]


def held_bytes(module: nn.Module) -> int:
    memories = {item.untyped_storage().data_ptr(): item.untyped_storage().nbytes() for item in module.parameters()}
    return sum(memories.values())


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
def test_joint_weights_are_the_separate_ones(bias: bool):
    layer = tiny_layer(attention_bias=bias, mlp_bias=bias)
    before, num_bytes = copy.deepcopy(layer.state_dict()), held_bytes(layer)
    pack_layer(layer)
    for projections in (query_key_value(layer.self_attn), gate_and_up(layer.mlp)):
        weight, joint_bias, scales = packed(projections)
        assert scales is None
        assert torch.equal(weight, torch.cat([projection.weight for projection in projections]))
        assert (joint_bias is None) is not bias
        if joint_bias is not None:
            assert torch.equal(joint_bias, torch.cat([projection.bias for projection in projections]))
    after = layer.state_dict()
    assert list(after) == list(before) and all(torch.equal(after[name], before[name]) for name in before)
    assert held_bytes(layer) == num_bytes


def test_packing_twice_changes_nothing():
    layer = tiny_layer()
    pack_layer(layer)
    places = [parameter.data_ptr() for parameter in layer.parameters()]
    pack_layer(layer)
    assert [parameter.data_ptr() for parameter in layer.parameters()] == places


def test_a_packed_layer_is_saved_and_filled_as_before(tmp_path: Path):
    layer, other = tiny_layer(), tiny_layer(seed=1)
    pack_layer(layer)
    save_file(layer.state_dict(), tmp_path / "layer.safetensors")
    layer.load_state_dict(other.state_dict())
    joint = torch.cat([projection.weight for projection in query_key_value(other.self_attn)])
    assert torch.equal(packed(query_key_value(layer.self_attn))[0], joint)
    layer.load_state_dict(load_file(tmp_path / "layer.safetensors"))
    assert torch.equal(packed(query_key_value(layer.self_attn))[0][:48], tiny_layer().self_attn.q_proj.weight)


@pytest.mark.parametrize("change", [copy.deepcopy, lambda layer: layer.half()], ids=["copied", "converted"])
def test_a_layer_that_fell_apart_is_noticed_and_packed_again(change: Any):
    layer = tiny_layer()
    pack_layer(layer)
    layer = change(layer)
    with pytest.raises(ValueError, match="found them apart; call pack_layer"):
        packed(query_key_value(layer.self_attn))
    pack_layer(layer)
    assert packed(gate_and_up(layer.mlp))[0].dtype == layer.mlp.up_proj.weight.dtype


def test_neighbours_in_another_order_are_not_packed():
    layer = tiny_layer()
    pack_layer(layer)
    with pytest.raises(ValueError, match="found them apart"):
        packed((layer.mlp.up_proj, layer.mlp.gate_proj))


def test_weights_can_be_packed_in_inference_mode_and_used_outside_it():
    layer, states = tiny_layer(), torch.ones(1, 24, requires_grad=True)
    with torch.inference_mode():
        pack_layer(layer)
    layer.mlp(states).sum().backward()
    assert states.grad is not None and not packed(gate_and_up(layer.mlp))[0].is_inference()


class Adapter(nn.Linear):
    """Does something of its own with its input."""


@pytest.mark.parametrize(
    ("projections", "reason"),
    [
        ([nn.Linear(4, 4), Adapter(4, 4)], "a projection is no plain Linear but Adapter"),
        ([nn.Linear(4, 4), nn.Linear(5, 4)], "projections differ in input size"),
        ([nn.Linear(4, 4), nn.Linear(4, 4).half()], "projections differ in input size, type or device"),
        ([nn.Linear(4, 4), nn.Linear(4, 4, bias=False)], "some projections have a bias and some have none"),
    ],
    ids=["adapter", "input size", "type", "bias"],
)
def test_projections_that_do_not_fit_are_refused(projections: list[nn.Linear], reason: str):
    assert reason in str(packing_obstacle(projections))
    with pytest.raises(ValueError, match=reason):
        pack(projections)
