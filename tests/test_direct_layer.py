"""Layers that run directly on a CPU give what the modules of transformers give, bit for bit."""

from __future__ import annotations

import pytest
import torch

from harness.models import direct_layer
from harness.models.target import TargetModel
from tests.tiny_engines import tiny_engine, tiny_head, tiny_requests
from tests.tiny_models import VOCAB_SIZE, random_target


def states_of(target: TargetModel, positions: torch.Tensor) -> list[torch.Tensor]:
    """What a forward over two slots leaves: the states, and all keys and values."""
    cache = target.new_cache(3, 40)
    token_ids = (torch.arange(positions.numel()).view_as(positions) * 7) % VOCAB_SIZE
    view = cache.view(slice(0, 2), positions, int(positions.max()) + 1)
    output = target.forward(token_ids, positions, view, (1, target.num_layers))
    return [output.hidden, *output.aux, *cache.keys, *cache.values]


@pytest.fixture
def through_modules(monkeypatch):
    def switch():
        monkeypatch.setattr(direct_layer, "serves", lambda layer, states, view: False)
        monkeypatch.setattr(direct_layer, "norm", lambda module, states: module(states))

    return switch


@pytest.mark.parametrize("width", [1, 5, 19])
def test_a_target_is_the_same(width, through_modules):
    target = random_target(seed=3)
    positions = torch.stack([torch.arange(width), torch.arange(width) + 9])
    found = states_of(target, positions)
    layer, view = target.causal_lm.model.layers[0], target.new_cache(1, 1).view(slice(0, 1), positions[:1, :1], 1)
    assert direct_layer.serves(layer, found[0], view) and not direct_layer.serves(layer, found[0].bfloat16(), view)
    through_modules()
    for ours, theirs in zip(found, states_of(target, positions), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "mtp"])
def test_drafts_are_the_same(kind, through_modules):
    def tokens():
        return [
            record.output_token_ids for record in tiny_engine(kind).run(tiny_requests(3, 5), lambda _: None).requests
        ]

    found = tokens()
    through_modules()
    assert found == tokens()
    assert {direct_layer.LlamaDecoderLayer} == set(map(type, tiny_head(kind, random_target(seed=3)).decoder_layers))
