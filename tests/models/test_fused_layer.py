"""Fused layers against those of transformers, what cannot be fused, packed projections, kernels that start early."""

from __future__ import annotations

import copy
import importlib
import inspect
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding

from harness.models.eagle3 import eagle3_layer
from harness.models.fused.fuse import (
    fusion_obstacle,
    gate_and_up,
    pack,
    pack_layer,
    packed,
    packing_obstacle,
    query_key_value,
)
from harness.models.fused.layer import add, add_norm, attend, decoder_layer, feed_forward
from harness.models.fused.operations import Operations, named_operations, operations_for
from harness.models.fused.rope_table import rope_table
from harness.models.fused.row_groups import GroupedRows, RowGroups
from harness.models.fused.tilings import Tiling
from harness.models.layer_forward import attend as unfused_attend
from harness.models.slot_cache import SlotCache
from harness.models.target import TargetModel
from tests.support.fused_rows import DEVICE, normal, rows_of, same
from tests.support.tiny_models import SIZES, TOLERANCE, random_causal_lm, random_tokens, randomize

CAPACITY, NUM_SLOTS, SPARE = 14, 4, 3
# Two prompts of 8 and 4 tokens in rows of 4, then three tokens behind each, where of the longer one two are taken back.
PROMPTS = ([0, 1, 1, SPARE, SPARE], [0, 0, 4, 0, 4], 4)
GROUPS = RowGroups(first=1, size=2)
"""Rows of the prompts that may be read together."""
ROUND = ([0, 1, SPARE, SPARE], [4, 6, 0, 0], 3)
REQUESTS = {0: 7, 1: 9}
"""Slots with a request, and how many positions of them are filled in the end."""


def tiny_target(kind: str, num_layers: int) -> TargetModel:
    causal_lm = random_causal_lm(kind, num_hidden_layers=num_layers).to(DEVICE)
    for layer in causal_lm.model.layers:
        pack_layer(layer)
    return TargetModel(causal_lm, None)


def garbage_cache(target: TargetModel) -> SlotCache:
    cache = target.new_cache(NUM_SLOTS, CAPACITY)
    for tensor in (*cache.keys, *cache.values):
        tensor.fill_(1e4)
    return cache


def tokens_of(slots: list[int], num_tokens: int) -> Tensor:
    tokens = random_tokens(len(slots), num_tokens, seed=num_tokens)
    tokens[-1] = tokens[-2]  # the rows of the spare slot write the same, whichever comes last
    return tokens.to(DEVICE)


def fused_forward(
    target: TargetModel,
    cache: SlotCache,
    rows: tuple[list[int], list[int], int],
    operations: Operations,
    groups: RowGroups | None = None,
) -> tuple[Tensor, list[Tensor]]:
    """Hidden states after the final norm, and the states entering each layer."""
    slots, starts = (torch.tensor(values, device=DEVICE) for values in rows[:2])
    body = target.causal_lm.model
    table = rope_table(body.rotary_emb, CAPACITY, DEVICE)
    states, residual, entering = target.embed(tokens_of(rows[0], rows[2])), None, []
    grouped = None if groups is None else GroupedRows.of(groups, slots, starts)
    for index, layer in enumerate(body.layers):
        assert fusion_obstacle(layer, body.rotary_emb) is None
        keys, values = cache.keys[index], cache.values[index]
        states, residual, entered = decoder_layer(
            layer, states, residual, table, keys, values, slots, starts, operations, groups=grouped
        )
        entering.append(entered)
    return add_norm(body.norm, states, residual, operations)[0], entering


def unfused_forward(target: TargetModel, cache: SlotCache, rows: tuple[list[int], list[int], int]) -> tuple[Any, ...]:
    slots, starts = (torch.tensor(values, device=DEVICE) for values in rows[:2])
    positions = starts[:, None] + torch.arange(rows[2], device=DEVICE)
    view = cache.view(slots, positions, int(positions.max()) + 1)
    every_layer = tuple(range(target.num_layers))
    return target.forward(tokens_of(rows[0], rows[2]), positions, view, every_layer)


def assert_equals_transformers(target: TargetModel, operations: Operations, groups: RowGroups | None) -> None:
    fused, unfused = garbage_cache(target), garbage_cache(target)
    for rows, together in ((PROMPTS, groups), (ROUND, None)):
        hidden, entering = fused_forward(target, fused, rows, operations, together)
        expected, expected_entering = unfused_forward(target, unfused, rows)
        torch.testing.assert_close(hidden, expected, **TOLERANCE)
        torch.testing.assert_close(entering, list(expected_entering), **TOLERANCE)
    for found, wanted in zip((*fused.keys, *fused.values), (*unfused.keys, *unfused.values), strict=True):
        for slot, length in REQUESTS.items():
            torch.testing.assert_close(found[slot, :, :length], wanted[slot, :, :length], **TOLERANCE)
            assert (found[slot, :, length:] == 1e4).all()
        assert (found[2] == 1e4).all()


READ = pytest.mark.parametrize("groups", [None, GROUPS], ids=["row by row", "in groups"])


@READ
@pytest.mark.parametrize("kind", ["llama", "llama3_rope", "qwen3"])
def test_twins_equal_transformers(kind: str, groups: RowGroups | None):
    assert_equals_transformers(tiny_target(kind, num_layers=3), named_operations("reference"), groups)


@READ
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_kernels_equal_transformers(kind: str, groups: RowGroups | None):
    assert_equals_transformers(tiny_target(kind, num_layers=1), named_operations("triton"), groups)


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
def test_parts_of_an_eagle3_layer_equal_transformers(bias: bool):
    """Its projections read embedding and features side by side."""
    config = LlamaConfig(**SIZES | {"num_hidden_layers": 1, "attention_bias": bias, "mlp_bias": bias})
    layer: Any = eagle3_layer(config).to(DEVICE).eval().requires_grad_(False)
    randomize(layer, seed=3)
    rotary = LlamaRotaryEmbedding(config).to(DEVICE)
    assert fusion_obstacle(layer, rotary) is None
    pack_layer(layer)
    joined = random_states(2, 3, 48)
    caches = [SlotCache(1, 2, CAPACITY, 2, 8, torch.float32, DEVICE) for _ in range(2)]
    slots, starts = torch.tensor([1, 0], device=DEVICE), torch.tensor([0, 0], device=DEVICE)
    positions = starts[:, None] + torch.arange(3, device=DEVICE)
    expected = unfused_attend(layer, rotary, joined, positions, caches[0].view(slots, positions, 3))
    table = rope_table(rotary, CAPACITY, DEVICE)
    found = attend(layer, joined, table, caches[1].keys[0], caches[1].values[0], slots, starts)
    torch.testing.assert_close(found, expected, **TOLERANCE)
    torch.testing.assert_close(caches[1].keys, caches[0].keys, **TOLERANCE)
    states = joined[..., :24].contiguous()
    torch.testing.assert_close(feed_forward(layer.mlp, states), layer.mlp(states), **TOLERANCE)


def random_states(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(7)).to(DEVICE)


def test_a_device_has_its_operations():
    assert operations_for(torch.device("cpu")) is named_operations("reference")
    assert operations_for(torch.device("cuda", 1)) is named_operations("triton")
    assert operations_for(torch.device("meta")) is named_operations("triton")
    assert (named_operations("reference").name, named_operations("triton").name) == ("reference", "triton")


@pytest.mark.parametrize("name", ["triton", "reference"])
@pytest.mark.parametrize("num_shares", [0, 2], ids=["whole", "shares"])
def test_a_sum_without_a_norm_is_that_before_one(num_shares: int, name: str):
    """Of rows of several tokens; the kernels leave shares, which no product of the twins does."""
    norm = LlamaRMSNorm(32, 1e-5).to(DEVICE, torch.float16)
    residual = normal(2, 3, 32, seed=1, dtype=torch.float16)
    states = normal(num_shares, 2, 3, 32, seed=2) if num_shares else normal(2, 3, 32, seed=2, dtype=torch.float16)
    operations = named_operations(name)
    same(add(states, residual, operations), add_norm(norm, states, residual, operations)[1])
    summed = states.sum(0).half() if num_shares else states
    same(add(states, residual, operations), residual + summed)


NAMES = [item.name for item in fields(Operations) if item.name != "name"]


@pytest.mark.parametrize("name", NAMES)
def test_kernels_and_twins_have_one_signature(name: str):
    kernel, twin = (
        getattr(operations, name) for operations in (named_operations("triton"), named_operations("reference"))
    )
    assert kernel is not twin and inspect.signature(kernel) == inspect.signature(twin)


def layer_and_rotary(kind: str = "llama", **changes: Any) -> tuple[Any, Any]:
    body = random_causal_lm(kind, num_hidden_layers=1, **changes).model
    return body.layers[0], body.rotary_emb


def part_of_a_rotation() -> tuple[Any, Any]:
    layer, rotary = layer_and_rotary()
    rotary.inv_freq = rotary.inv_freq[:2]
    return layer, rotary


def a_namesake() -> tuple[Any, Any]:
    layer, rotary = layer_and_rotary()
    layer.__class__ = type(type(layer).__name__, (type(layer),), {"__module__": __name__})
    return layer, rotary


def with_an_adapter() -> tuple[Any, Any]:
    class Adapter(nn.Linear):
        """Does something of its own with its input."""

    layer, rotary = layer_and_rotary()
    layer.self_attn.o_proj = Adapter(48, 24, bias=False).requires_grad_(False)
    return layer, rotary


def with_a_norm_behind_the_mlp() -> tuple[Any, Any]:
    layer, rotary = layer_and_rotary()
    layer.post_feedforward_layernorm = nn.RMSNorm(24)
    return layer, rotary


def with_scaled_residuals() -> tuple[Any, Any]:
    layer, rotary = layer_and_rotary()
    layer.residual_multiplier = 0.5
    return layer, rotary


def with_norms_over_all_heads() -> tuple[Any, Any]:
    layer, rotary = layer_and_rotary("qwen3")
    layer.self_attn.q_norm = nn.RMSNorm(48)
    return layer, rotary


def with_other_weights(change: Any) -> tuple[Any, Any]:
    layer, rotary = layer_and_rotary()
    return change(layer), rotary


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: (nn.Identity(), None), "linear.Identity is no LlamaDecoderLayer or Qwen3DecoderLayer"),
        (a_namesake, "test_fused_layer.LlamaDecoderLayer is no LlamaDecoderLayer"),
        (lambda: layer_and_rotary(hidden_act="gelu"), "its activation is gelu, not silu"),
        (
            lambda: layer_and_rotary("qwen3", use_sliding_window=True, sliding_window=8, max_window_layers=0),
            "it attends to a sliding window of 8 positions",
        ),
        (lambda: layer_and_rotary(head_dim=12), "the width of its heads, 12, is no power of two up to 256"),
        (lambda: layer_and_rotary(head_dim=512), "the width of its heads, 512, is no power of two"),
        (part_of_a_rotation, "its RoPE turns 4 of 8 components of a head"),
        (
            lambda: layer_and_rotary(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
            "the angles of its RoPE (dynamic) depend on the longest sequence",
        ),
        (with_an_adapter, "a projection is no plain Linear but Adapter"),
        (with_a_norm_behind_the_mlp, "it has post_feedforward_layernorm, which fused layers do not compute"),
        (with_scaled_residuals, "its residuals have a scale of 0.5"),
        (with_norms_over_all_heads, "its norms of queries are over 48 numbers, not the 8 of a head"),
        (lambda: with_other_weights(lambda layer: layer.double()), "its weights are torch.float64"),
        (lambda: with_other_weights(lambda layer: layer.requires_grad_()), "its weights are being trained"),
    ],
    ids=[
        "another layer",
        "another one of that name",
        "activation",
        "sliding window",
        "odd width",
        "wide heads",
        "partial rotary",
        "dynamic RoPE",
        "adapter",
        "another norm",
        "scaled residuals",
        "norms over all heads",
        "float64",
        "training",
    ],
)
def test_what_cannot_be_fused_is_named(make: Any, reason: str):
    obstacle = fusion_obstacle(*make())
    assert obstacle is not None and reason in obstacle


def test_an_unpacked_layer_is_refused():
    layer, rotary = layer_and_rotary()
    states, table = torch.zeros(1, 1, 24), rope_table(rotary, 4, "cpu")
    keys, rows = torch.zeros(1, 2, 4, 8), torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match="call pack_layer"):
        attend(layer, states, table, keys, keys.clone(), rows, rows)


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


def test_a_layer_is_packed_without_the_projections_that_it_lacks():
    """Would catch an MLP without a gate that no target can be loaded with, and one that fused layers take."""
    layer, (_, rotary) = tiny_layer(), layer_and_rotary()
    del layer.mlp.gate_proj
    pack_layer(layer)
    joint = torch.cat([projection.weight for projection in query_key_value(tiny_layer().self_attn)])
    assert torch.equal(packed(query_key_value(layer.self_attn))[0], joint)
    assert "lacks projections that fused layers compute" in (fusion_obstacle(layer, rotary) or "")


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


KERNELS = {
    "add_rms_norm": "_add_rms_norm_kernel",
    "combine_splits": "_combine_splits_kernel",
    "gated_activation": "_silu_mul_kernel",
    "join_embedded": "_join_embedded_kernel",
    "rotate_and_store": "_rotate_and_store_kernel",
    "skinny_linear": "_skinny_linear_kernel",
    "slot_attention": "_slot_attention_kernel",
}


class NotedKernel:
    """Stands before a kernel, and notes the constants of its launches instead of running it."""

    def __init__(self) -> None:
        self.constants: list[dict[str, Any]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda **constants: self.constants.append(constants)


def launch_everything() -> None:
    from harness.models.fused.gated_activation import silu_mul
    from harness.models.fused.operations import named_operations
    from harness.models.fused.skinny_linear import launch

    operations = named_operations("triton")
    states, weight = normal(2, 64, dtype=torch.float16), normal(64, 64, dtype=torch.float16)
    operations.add_rms_norm(states, None, weight[0], 1e-5)
    operations.join_embedded(torch.zeros(2, dtype=torch.int64, device=DEVICE), weight, states)
    silu_mul(states)
    launch(states, weight, None, Tiling(16, 16, 16, 1, 2, 4), gated=False)
    rows = rows_of([0, 1], [40, 50], (2, 2, 256, 16), num_filled=0)
    table: Tensor = torch.zeros(256, 16, device=DEVICE)
    queries = operations.rotate_and_store(normal(2, 8 * 16), table, *rows)
    operations.slot_attention(queries, *rows, 0.25)


@pytest.mark.parametrize("can", [True, False], ids=["a GPU that can", "another device"])
def test_every_kernel_of_a_layer_starts_early_where_it_can(can: bool, monkeypatch: pytest.MonkeyPatch):
    noted = {name: NotedKernel() for name in KERNELS}
    for name, kernel in KERNELS.items():
        module = importlib.import_module(f"harness.models.fused.{name}")
        monkeypatch.setattr(module, kernel, noted[name])
        monkeypatch.setattr(module, "overlaps", lambda num_tokens: can)
    launch_everything()
    for name, kernel in noted.items():
        assert len(kernel.constants) == 1, name
        assert kernel.constants[0]["OVERLAPS"] is kernel.constants[0]["launch_pdl"] is can, name


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs Triton's interpreter, which runs where there is no GPU")
def test_nothing_starts_early_in_the_interpreter():
    from harness.models.fused.overlap import overlaps

    assert overlaps(64) is False


def test_kernels_of_few_tokens_do_not_overlap(monkeypatch: pytest.MonkeyPatch):
    from harness.models.fused import overlap

    monkeypatch.setattr(overlap, "knobs", SimpleNamespace(runtime=SimpleNamespace(interpret=False)))
    target = SimpleNamespace(backend="cuda", arch=90)
    monkeypatch.setattr(overlap, "driver", SimpleNamespace(active=SimpleNamespace(get_current_target=lambda: target)))
    assert [overlap.overlaps(count) for count in (1, 16, 17, 2048)] == [False, False, True, True]
    target.arch = 80
    assert not overlap.overlaps(64)
