"""Layers that run directly on a CPU give what the modules of transformers give, bit for bit."""

from __future__ import annotations

import pytest
import torch

from harness.models import direct_layer
from harness.models.decoder_layer import classes_of
from harness.models.target import TargetModel
from tests.support.tiny_engines import tiny_engine, tiny_head, tiny_requests
from tests.support.tiny_models import VOCAB_SIZE, random_causal_lm, random_target, word_tokenizer


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


def doubled(module: torch.nn.Module) -> None:
    """Have a module return twice as much, as one of a class with the name of its own."""
    kind = type(module)

    def forward(self, *given, **named):
        output = kind.forward(self, *given, **named)
        return (2 * output[0], *output[1:]) if isinstance(output, tuple) else 2 * output

    module.__class__ = type(kind.__name__, (kind,), {"forward": forward, "__module__": __name__})


@pytest.mark.parametrize(
    "part",
    ["", "self_attn", "mlp", "input_layernorm", "self_attn.o_proj", "mlp.up_proj"],
    ids=lambda part: part or "layer",
)
@pytest.mark.parametrize("is_ours", [True, False], ids=["ours", "transformers"])
def test_a_part_that_computes_something_else_is_called(is_ours, part, through_modules):
    """Would catch a layer that is taken for a Llama's by a name, or by some of its parts."""
    causal_lm = random_causal_lm(seed=3)
    if is_ours:
        theirs, causal_lm = causal_lm, classes_of("llama").causal_lm(causal_lm.config)
        causal_lm.load_state_dict(theirs.state_dict())
    target = TargetModel(causal_lm, word_tokenizer())
    positions = torch.arange(5).expand(2, 5)
    before = states_of(target, positions)
    for layer in causal_lm.model.layers:
        doubled(layer.get_submodule(part))
    found = states_of(target, positions)
    assert not torch.equal(found[0], before[0])
    through_modules()
    for ours, expected in zip(found, states_of(target, positions), strict=True):
        assert torch.equal(ours, expected)
