"""Attention of transformers' layers over keys and values where the cache has them, and joined projections."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._inductor import config as kernels_config

from harness.models.general import custom_ops
from harness.models.general.attention import attend
from harness.models.general.joint_products import joined
from harness.models.general.network import standing_in
from harness.models.general.probe import TOLERANCE, difference_over_slots
from harness.models.general.same_products import SameProducts
from harness.models.general.target import GeneralTarget
from tests.support.any_models import VOCAB_SIZE, tiny_model

CAPACITY, NUM_DRAFTED = 14, 4
LENGTHS = torch.tensor([7, 4, 2])
SLOTS = torch.tensor([2, 0, 3])
WINDOWED = ("mistral", "ministral", "cohere2", "olmo3", "exaone4", "gemma3_text", "gemma2", "gpt_oss")
"""Families whose windows are 8 of a slot's 14 places; gemma2 has soft caps, gpt_oss sinks."""
IN_PLACE = ("llama", "qwen3_moe", "gpt_neox", "lfm2", *WINDOWED)
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


@pytest.mark.parametrize("capacity", [8, 9, 10])
@torch.inference_mode()
def test_windows_about_as_long_as_a_slot(capacity):
    """Would catch a window that is taken for a whole slot one place too early, or too late."""
    target, found = GeneralTarget(tiny_model("gemma3_text"), None), []
    token_ids = torch.randint(VOCAB_SIZE, (2, capacity), generator=torch.Generator().manual_seed(0))
    positions, slots = torch.arange(capacity).expand(2, -1), torch.tensor([1, 0])
    for is_in_place in (True, False):
        cache = target.new_cache(2, capacity)
        cache.is_in_place = is_in_place
        view = cache.view(slots, positions, capacity)
        found.append(target.logits(target.forward(token_ids, positions, view).hidden))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("capacity", [1, 3])
def test_a_sink_and_a_soft_cap_together(capacity):
    """Of one place too, which no kernel reads."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 4, 1, 8), (2, 2, capacity, 8), (2, 2, capacity, 8))
    query, keys, values = (torch.randn(shape, generator=generator) for shape in shapes)
    extras = {"sinks": torch.randn(4, generator=generator), "softcap": 0.5}
    slots, starts = torch.tensor([1, 0]), torch.full((2,), capacity - 1)
    in_place = torch.stack([slots, starts]).view(2, 1, 1, -1)
    found, _ = attend(None, query, keys, values, in_place, **extras)
    mask = torch.ones(2, 1, 1, capacity, dtype=torch.bool)
    expected, _ = attend(None, query, keys[slots], values[slots], mask, **extras)
    torch.testing.assert_close(found, expected)


def test_the_check_at_load_reads_in_place(monkeypatch):
    """Would catch a check that compares what no step of fixed sizes runs."""
    target = GeneralTarget(tiny_model("gpt_oss"), None)
    assert difference_over_slots(target) < TOLERANCE
    attend_right = custom_ops.slot_attention

    def without_sinks(*given):
        return attend_right(*given[:7], None, *given[8:])

    monkeypatch.setattr(custom_ops, "slot_attention", without_sinks)
    assert difference_over_slots(target) > TOLERANCE


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
