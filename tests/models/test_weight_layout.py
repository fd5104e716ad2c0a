"""Products with weights that are laid out for them are those of the weights as they were."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from harness.models import weight_layout
from harness.models.direct_layer import joined
from harness.models.weight_layout import BlockedWeight, JointProduct, blocked_bytes, lay_out, product
from tests.support.tiny_engines import tiny_engine, tiny_requests
from tests.support.tiny_heads import make_head
from tests.support.tiny_models import random_target

needs_blocks = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch has no oneDNN here")
DTYPES = (torch.float32, torch.bfloat16)


def has_blocks(dtype: torch.dtype) -> bool:
    """Blocks of 16 bits are of some CPUs alone."""
    return dtype is torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported()


class Tied(nn.Module):
    """An embedding that is the output matrix too, and layers between."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(600, 448)
        self.large = nn.Linear(448, 1400)
        self.small = nn.Linear(1400, 40, bias=False)
        self.head = nn.Linear(448, 600, bias=False)
        self.head.weight = self.embed.weight
        self.to(dtype).requires_grad_(False)


@pytest.fixture
def everything_in_blocks(monkeypatch):
    monkeypatch.setattr(weight_layout, "MAX_SMALL", 0)
    monkeypatch.setattr(weight_layout, "MAX_SINGLE", 0)


@needs_blocks
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_tokens", [1, 2, 5, 40])
def test_products_are_those_of_the_weights(dtype, num_tokens):
    """Fails if blocks are of other numbers, or a bias is left out."""
    network = Tied(dtype)
    expected = copy.deepcopy(network)
    lay_out(network)
    states = torch.randn(2, num_tokens, 448).to(dtype)
    exact = functional.linear(states.double(), expected.large.weight.double(), expected.large.bias.double())
    for found in (network.large(states), product(states, network.large.weight, network.large.bias)):
        assert found.dtype is dtype
        assert type(network.large.weight) is (BlockedWeight if has_blocks(dtype) else nn.Parameter)
        torch.testing.assert_close(found.double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=1e-5)


@needs_blocks
def test_parameters_stay_as_they_were():
    """Fails if a tied matrix is counted twice, or a small weight held twice."""
    network, expected = Tied(), Tied()
    num_bytes = blocked_bytes(network)
    lay_out(network)
    assert num_bytes == 4 * 448 * (600 + 1400) and not blocked_bytes(network)
    assert network.head.weight is network.embed.weight
    assert type(network.small.weight) is nn.Parameter
    assert list(network.state_dict()) == list(expected.state_dict())
    for ours, theirs in zip(network.parameters(), expected.parameters(), strict=True):
        assert torch.equal(ours, theirs) and ours.requires_grad == theirs.requires_grad


@needs_blocks
def test_what_is_written_into_a_weight_is_multiplied_by():
    """Fails if blocks outlive their weight's values."""
    network = Tied()
    lay_out(network)
    states = torch.randn(1, 448)
    twin = copy.deepcopy(network)
    with torch.inference_mode():
        network.embed.weight.mul_(2)
    assert torch.equal(network.head(states), functional.linear(states, network.embed.weight))
    assert torch.equal(twin.head(states), functional.linear(states, twin.embed.weight))


@needs_blocks
def test_gradients_go_through():
    """Fails if a head that is trained through a target's output matrix gets none."""
    network = Tied()
    lay_out(network)
    states = torch.randn(2, 448, requires_grad=True)
    network.head(states).sum().backward()
    torch.testing.assert_close(states.grad, network.embed.weight.sum(dim=0).expand(2, -1), rtol=1e-4, atol=1e-4)


@needs_blocks
def test_a_weight_that_is_trained_later_gets_gradients():
    """Fails if blocks, which know no gradients, stand in for a weight that wants one."""
    network = Tied()
    lay_out(network)
    network.large.weight.requires_grad_(True)
    states = torch.randn(2, 448)
    network.large(states).sum().backward()
    torch.testing.assert_close(network.large.weight.grad, states.sum(dim=0).expand(1400, -1), rtol=1e-4, atol=1e-4)
    joint = beside_each_other(bias=True)
    lay_out(joint, joined=joint_of)
    joint.second.weight.requires_grad_(True)
    assert joint.joint(joint, torch.randn(1, 2, 256)) is None


@needs_blocks
def test_what_must_not_be_laid_out_is_not(monkeypatch):
    """Fails if a module that does more than multiply, is trained, or is too large loses what it does."""
    network = Tied()
    network.large.register_forward_hook(lambda module, given, found: found + 1)
    network.head.weight.requires_grad_(True)
    lay_out(network)
    assert type(network.large) is nn.Linear and type(network.head) is nn.Linear
    network = Tied()
    monkeypatch.setattr(weight_layout, "MAX_BLOCKED_BYTES", blocked_bytes(network) - 1)
    lay_out(network)
    assert not blocked_bytes(network) and type(network.large) is nn.Linear


def joint_of(network: nn.Module) -> list[tuple[nn.Module, tuple[str, ...]]]:
    return [(network, ("first", "second"))]


def beside_each_other(bias: bool) -> nn.Module:
    torch.manual_seed(1)
    network = nn.Module()
    network.first, network.second = nn.Linear(256, 320, bias=bias), nn.Linear(256, 96, bias=bias)
    return network.requires_grad_(False)


@needs_blocks
def test_a_copy_of_the_targets_rows_lies_in_blocks_too(everything_in_blocks):
    """Fails if a head of the target's output reads its rows slower than its own weights, or stores them."""
    head = make_head("eagle3", random_target(), own_output=False)
    states, stored = torch.randn(2, 24), list(head.state_dict())
    expected, num_bytes = head.logits(states), blocked_bytes(head)
    lay_out(head)
    assert type(head.output_matrix) is BlockedWeight and list(head.state_dict()) == stored
    torch.testing.assert_close(head.logits(states), expected)
    assert num_bytes == sum(each.nbytes for each in head.parameters() if each.ndim == 2) + head.output_matrix.nbytes


@needs_blocks
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("num_tokens", [1, 3])
def test_a_joint_product_is_that_of_each(bias, num_tokens):
    """Fails if parts are of another order, or a part of the joint weight is not the module's own."""
    network, expected = beside_each_other(bias), beside_each_other(bias)
    assert blocked_bytes(network, joint_of) == 4 * 256 * 416
    lay_out(network, joined=joint_of)
    states = torch.randn(2, num_tokens, 256)[:1]
    found = network.joint(network, states)
    for each, part in zip(("first", "second"), found.split([320, 96], dim=-1), strict=True):
        of_module, of_copy = getattr(network, each)(states), getattr(expected, each)(states)
        assert torch.equal(getattr(network, each).weight, getattr(expected, each).weight)
        for other in (of_module, of_copy):
            torch.testing.assert_close(part, other, rtol=1e-5, atol=1e-5)


@needs_blocks
def test_what_is_written_into_a_bias_is_added_by_a_joint_product():
    """Fails if a joint product keeps the biases that there were when it was made."""
    network, states = beside_each_other(bias=True), torch.randn(1, 2, 256)
    lay_out(network, joined=joint_of)
    before = network.joint(network, states)
    network.second.bias.add_(3)
    after = network.joint(network, states)
    torch.testing.assert_close(after - before, torch.tensor([0.0] * 320 + [3.0] * 96).expand(1, 2, -1))


@needs_blocks
@pytest.mark.parametrize("changed", ["module", "weight", "values", "copied"])
def test_a_joint_product_does_not_outlive_what_it_is_of(changed):
    """Fails if an adapter put in the place of a projection is passed over."""
    network = beside_each_other(bias=False)
    lay_out(network, joined=joint_of)
    states = torch.randn(1, 2, 256)
    assert isinstance(network.joint, JointProduct) and network.joint(network, states) is not None
    if changed == "module":
        network.second = nn.Linear(256, 96, bias=False)
    elif changed == "weight":
        network.first.weight = nn.Parameter(torch.zeros(320, 256), requires_grad=False)
    elif changed == "values":
        network.first.weight[3] = 0
    else:
        network = copy.deepcopy(network)
    assert network.joint is None or network.joint(network, states) is None


@needs_blocks
@pytest.mark.parametrize("kind", ["eagle", "eagle3", "mtp"])
def test_rounds_emit_the_same_tokens(kind, everything_in_blocks):
    """Fails if an engine's layers read a weight of another layer, or queries, keys and values are taken for others."""

    def tokens(engine):
        return [record.output_token_ids for record in engine.run(tiny_requests(3, 5), lambda _: None).requests]

    plain, blocked = tiny_engine(kind), tiny_engine(kind)
    target, head = blocked.target.causal_lm, blocked.drafter.head
    for network in (target, head):
        lay_out(network, joined=joined)
    assert type(blocked.target.output_matrix) is BlockedWeight
    for layer in (*target.model.layers, *head.decoder_layers):
        assert isinstance(layer.self_attn.joint, JointProduct) and isinstance(layer.mlp.joint, JointProduct)
    assert tokens(plain) == tokens(blocked)
