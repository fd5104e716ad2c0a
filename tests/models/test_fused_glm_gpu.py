"""What only a GPU can show of the fused GLM layer: bfloat16, real sizes, CUDA graphs, no waiting for the device."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from transformers import Glm4MoeLiteConfig

from harness.models.decoder_layer import classes_of, use_slots, with_slots
from harness.models.fused.fuse import fusion_obstacle, pack_layer
from harness.models.fused.layer import LayerOutput, add_norm, decoder_layer, feed_forward
from harness.models.fused.operations import Operations, named_operations
from harness.models.fused.rope_table import rope_table
from harness.models.fused.routing import Choice
from harness.models.shape import read_shape
from harness.models.slot_cache import SlotCache
from tests.support.fused_rows import normal, same

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")
CAPACITY, NUM_ROWS, HIDDEN = 400, 16, 2048
LAYER_ERROR = 12 * 2**-8
"""Of the norms of bfloat16 results: two ways to compute a part differ in a rounding of half a unit, 2^-8, at up to 12
places: two norms, two of latents, rotation, absorbed query, weights and result of attention, values, activation, a
result of an expert, their sum."""


class GlmLayer(NamedTuple):
    """A layer with experts at real size, and what it is called with."""

    layer: Any
    rotary: Any
    cache: SlotCache
    states: Tensor
    residual: Tensor
    slots: Tensor
    starts: Tensor

    def __call__(self, operations: Operations, keys: Tensor) -> LayerOutput:
        table = rope_table(self.rotary, CAPACITY, CUDA)
        places = (keys, self.cache.values[0], self.slots, self.starts)
        return decoder_layer(self.layer, self.states, self.residual, table, *places, operations)

    def refill(self, seed: int) -> None:
        """Other states at other positions, so that others of the experts are hit."""
        shape = self.states.shape
        self.states.copy_(normal(*shape, seed=seed, dtype=torch.bfloat16))
        self.residual.copy_(normal(*shape, seed=seed + 1, dtype=torch.bfloat16))
        generator = torch.Generator().manual_seed(seed)
        self.starts.copy_(torch.randint(CAPACITY - shape[1], (NUM_ROWS,), generator=generator))


def glm_layer(num_tokens: int) -> GlmLayer:
    fields = {name: value for name, value in read_shape("glm47_flash").config.items() if name != "model_type"}
    config = Glm4MoeLiteConfig(**fields | {"num_hidden_layers": 1}, mlp_layer_types=["sparse"])
    types, slots_config = classes_of(config.model_type), with_slots(config)
    with CUDA:
        layer, rotary = types.layer(slots_config, 0), types.rotary(config)
    use_slots(layer, slots_config)
    torch.manual_seed(0)
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(False)
        scale, mean = (0.1, 1.0) if "norm" in name else (0.02, 0.0)
        parameter.data = torch.empty(parameter.shape, dtype=torch.bfloat16, device=CUDA).normal_(mean, scale)
    layer.mlp.gate.e_score_correction_bias.normal_(0, 0.02)
    assert fusion_obstacle(layer, rotary) is None
    pack_layer(layer)
    cache = SlotCache(1, NUM_ROWS, CAPACITY, 1, 576, torch.bfloat16, CUDA, value_dim=0)
    cache.keys[0].normal_()
    empty = torch.empty(NUM_ROWS, num_tokens, HIDDEN, dtype=torch.bfloat16, device=CUDA)
    slots = torch.arange(NUM_ROWS, device=CUDA)
    made = GlmLayer(layer.eval(), rotary, cache, empty, empty.clone(), slots, torch.zeros_like(slots))
    made.refill(1)
    return made


def assert_near(found: Tensor, expected: Tensor) -> None:
    distance = (found.float() - expected.float()).norm() / expected.float().norm()
    assert float(distance) <= LAYER_ERROR


@pytest.mark.parametrize("num_tokens", [1, 4, 8, 9], ids=["K = 0", "K = 3", "most tokens", "experts as before"])
@torch.no_grad()
def test_graph_replays_on_changed_rows(num_tokens: int):
    made = glm_layer(num_tokens)
    keys = made.cache.keys[0].clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        made(named_operations("triton"), keys)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = made(named_operations("triton"), keys)
    for seed in (3, 5, 3):
        made.refill(seed)
        twin_keys = keys.clone()
        expected = made(named_operations("reference"), twin_keys)
        graph.replay()
        assert_near(found.residual, expected.residual)
        assert_near(keys, twin_keys)
        # From the very states: of nearly the same ones, a token may go to another expert.
        normed, _ = add_norm(made.layer.post_attention_layernorm, found.residual)
        assert_near(found.states, feed_forward(made.layer.mlp, normed, named_operations("reference")))


@torch.no_grad()
def test_nothing_waits_for_the_device_and_results_repeat():
    made = glm_layer(4)
    keys = made.cache.keys[0]
    first = made(named_operations("triton"), keys)
    table = rope_table(made.rotary, CAPACITY, CUDA)
    torch.cuda.set_sync_debug_mode("error")
    try:
        places = (keys, made.cache.values[0], made.slots, made.starts)
        again = decoder_layer(made.layer, made.states, made.residual, table, *places, named_operations("triton"))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    same(again.states, first.states)


@pytest.mark.parametrize("num_tokens", [1, 16, 64, 128])
@torch.no_grad()
def test_tokens_go_where_transformers_sends_them(num_tokens: int):
    """Unless two scores are closer than the float32 sums of their logits, in whatever order, can tell apart."""
    router = glm_layer(1).layer.mlp.gate
    states = normal(num_tokens, HIDDEN, seed=num_tokens, dtype=torch.bfloat16)
    routing = named_operations("triton").route_tokens(
        states, router.weight, router.e_score_correction_bias, Choice.of(router)
    )
    logits, weights, chosen = router(states)
    candidates = (logits.sigmoid() + router.e_score_correction_bias).sort(dim=-1, descending=True).values
    is_clear = candidates[:, router.top_k - 1] - candidates[:, router.top_k] > HIDDEN * 2**-24
    places = torch.arange(routing.tokens.numel(), device=CUDA, dtype=torch.int32)
    experts = torch.searchsorted(routing.starts, places, right=True) - 1
    found, expected = torch.zeros(2, num_tokens, router.num_experts, device=CUDA)
    found.scatter_(1, experts[routing.places.long()], routing.weights)
    expected.scatter_(1, chosen, weights)
    assert is_clear.float().mean() > 0.9
    torch.testing.assert_close(found[is_clear], expected[is_clear], rtol=1e-4, atol=1e-5)
