"""Attention of transformers' layers over keys and values where the cache has them, and joined projections."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._inductor import config as kernels_config

from harness.models.general.joint_products import joined
from harness.models.general.network import standing_in
from harness.models.general.same_products import SameProducts
from harness.models.general.target import GeneralTarget
from tests.support.any_models import VOCAB_SIZE, tiny_model

CAPACITY, NUM_DRAFTED = 14, 4
LENGTHS = torch.tensor([7, 4, 2])
SLOTS = torch.tensor([2, 0, 3])
IN_PLACE = ("llama", "qwen3_moe", "gpt_neox", "lfm2", "gemma3_text", "gemma2", "gpt_oss")
"""The last three have windows of 8 of a slot's 14 places; soft caps; sinks."""
COPIED = {
    "deepseek_v3": "heads of one width",
    "llama4_text": "causal masks",
    "deepseek_v32": "indices",
    "falcon": "code of its own",
}
"""Family -> why not, in words."""


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch):
    monkeypatch.setattr("harness.models.general.target.DEVICES", frozenset(("cpu",)))


@torch.inference_mode()
def read(target: GeneralTarget, is_in_place: bool) -> list[Tensor]:
    """Logits of prompts of different lengths, of rejected drafts, and of other tokens in their place."""
    generator = torch.Generator().manual_seed(0)
    token_ids, wrong_ids = torch.randint(VOCAB_SIZE, (2, 3, CAPACITY), generator=generator)
    cache = target.new_cache(4, CAPACITY, rewind=CAPACITY)
    cache.is_in_place = is_in_place
    found = []
    for begin, num_tokens, given in ((0, 7, token_ids), (LENGTHS, 4, wrong_ids), (LENGTHS + 1, 4, token_ids)):
        starts = torch.as_tensor(begin).expand(3)
        positions = starts[:, None] + torch.arange(num_tokens)
        view = cache.view(SLOTS, positions, CAPACITY)
        assert view.is_in_place is is_in_place
        found.append(target.logits(target.forward(given.gather(1, positions), positions, view).hidden))
    found[0] = found[0][torch.arange(7) < LENGTHS[:, None]]
    return found


@pytest.mark.parametrize("model_type", IN_PLACE)
def test_logits_in_place_are_those_of_copies(model_type):
    """Would catch rows that read another slot or place, and queries that see rejected drafts."""
    target = GeneralTarget(tiny_model(model_type), None)
    assert target.new_cache(4, CAPACITY).is_in_place
    for found, expected in zip(read(target, True), read(target, False), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@torch.inference_mode()
def test_one_place_in_place_is_that_of_copies():
    """With a sink, which takes its share of one key too."""
    target, found = GeneralTarget(tiny_model("gpt_oss"), None), []
    for is_in_place in (True, False):
        cache = target.new_cache(2, 1)
        cache.is_in_place = is_in_place
        found.append(target.read_token(cache, (1,))[0])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("model_type", "why"), COPIED.items())
def test_what_a_kernel_does_not_compute_reads_copies(model_type, why):
    """Would catch what attention asks for and is dropped without a word."""
    target = GeneralTarget(tiny_model(model_type), None)
    assert not target.new_cache(4, CAPACITY).is_in_place
    assert why in str(target._in_place_obstacle)


def test_joined_projections_are_one_product_and_the_same_results():
    """Would catch modules that take each other's part, and products that are computed three times."""
    layer, states = tiny_model("llama").model.layers[0], torch.randn(5, 32)
    attention = layer.self_attn
    projections = attention.q_proj, attention.k_proj, attention.v_proj

    def project(given: Tensor) -> list[Tensor]:
        return [each(given) for each in projections]

    expected, num_products = project(states), []

    class Counted(SameProducts):
        def __call__(self, graph):
            super().__call__(graph)
            num_products.append(sum(node.target is torch.ops.aten.mm.default for node in graph.nodes))

    parts = joined(layer)
    assert len(parts) == 5
    torch.testing.assert_close(project(states), expected, rtol=0, atol=0)
    # graphs that were compiled before come from a cache, without the pass
    counted = kernels_config.patch(post_grad_custom_pre_pass=Counted(), force_disable_caches=True)
    with standing_in(parts), torch.inference_mode(), counted:
        torch.testing.assert_close(torch.compile(project, fullgraph=True)(states), expected)
    assert num_products == [1]
