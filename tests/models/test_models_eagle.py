"""EAGLE heads: the layer written out plainly, fields of public files, and what does not fit."""

from __future__ import annotations

import json

import pytest
import torch

from harness.models.checkpoint import CheckpointError
from harness.models.eagle import EagleConfig, load_eagle
from harness.models.head import save_head
from tests.support.plain_layers import attention, mlp, rms_norm, with_prefix
from tests.support.public_configs import HEADS
from tests.support.tiny_heads import TENSORS, load_quietly, make_head, run
from tests.support.tiny_models import (
    LLAMA3_ROPE,
    SIZES,
    TOLERANCE,
    edit_config,
    edit_weights,
    positions_from,
    random_target,
    random_tokens,
)

OWN_SIZES = {"intermediate_size": 52, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 6}


@pytest.fixture
def target():
    return random_target()


@pytest.fixture
def folder(tmp_path, target):
    save_head(make_head("eagle", target, bias=False), tmp_path)
    return tmp_path


def plain_forward(weights, embedding, config, token_ids, features):
    """[T, H] from the description: fc of token and feature, attention without a norm before it, then the MLP."""
    layer, positions = with_prefix(weights, "layers.0."), torch.arange(token_ids.numel())
    states = torch.cat((embedding[token_ids], features), dim=-1) @ weights["fc.weight"].T + weights.get("fc.bias", 0)
    states = states + attention(states, layer, positions, config)
    return states + mlp(rms_norm(states, layer["post_attention_layernorm.weight"], config.rms_norm_eps), layer)


def assert_equals_plain(head):
    weights, target = head.state_dict_public(), head.target
    embedding = weights.get("embed_tokens.weight", target.embed_weight)
    tokens, states, output = run(head)
    for row in range(2):
        expected = plain_forward(weights, embedding, head.config.layer, tokens[row, 1:], states.hidden[row, :-1])
        torch.testing.assert_close(output.hidden[row], expected, **TOLERANCE)
        expected_logits = expected @ target.causal_lm.lm_head.weight.T
        torch.testing.assert_close(head.logits(output.hidden)[row], expected_logits, **TOLERANCE)
    assert output.next_features is output.hidden


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("own", [{}, OWN_SIZES], ids=["sizes of the target", "sizes of its own"])
def test_forward_equals_the_plain_description(target, bias, own):
    assert_equals_plain(make_head("eagle", target, bias=bias, **own))
    assert_equals_plain(make_head("eagle", target, bias=bias, own_embedding=True, **own))


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
def test_a_cached_chain_equals_the_plain_description(target, bias):
    """Position t + 1, the token drafted, and as its feature the layer's output of the step before, without a norm."""
    head = make_head("eagle", target, bias=bias)
    weights, tokens = head.state_dict_public(), random_tokens(1, 10)
    features = head.features(target.forward(tokens[:, :6], positions_from([0], 6), None))
    plain_features, cache = features[0], head.new_cache(num_slots=1, capacity=9)
    for start, stop in ((0, 6), (6, 7), (7, 8), (8, 9)):
        positions = positions_from([start], stop - start)
        view = cache.view(slice(0, 1), positions, stop)
        output = head(tokens[:, start + 1 : stop + 1], features, positions, view)
        plain = plain_forward(weights, target.embed_weight, head.config.layer, tokens[0, 1 : stop + 1], plain_features)
        torch.testing.assert_close(output.hidden[0, -1], plain[-1], **TOLERANCE)
        logits = head.logits(output.hidden)[0, -1]
        torch.testing.assert_close(logits, target.causal_lm.lm_head.weight @ plain[-1], **TOLERANCE)
        features, plain_features = output.next_features[:, -1:], torch.cat((plain_features, plain[-1:]))


def test_a_config_of_the_public_style_is_read_and_written(folder, target):
    """The fields of public EAGLE heads: Llama's, with rope_theta and torch_dtype. The vocabulary is the target's."""
    written = json.loads((folder / "config.json").read_text())
    assert (written["bias"], written["num_hidden_layers"], written["rope_theta"]) == (False, 1, 10000.0)
    fields = HEADS["EAGLE of Llama 3"][1] | SIZES | {"num_hidden_layers": 1, "bias": False}
    (folder / "config.json").write_text(json.dumps(fields | {"rope_scaling": None, "rms_norm_eps": 1e-5}))
    loaded = load_quietly("eagle", folder, target)
    assert loaded.config.layer.rope_parameters["rope_theta"] == 500000.0
    assert loaded.config.layer.rms_norm_eps == 1e-5
    assert_equals_plain(loaded)


def test_scaled_rope_is_written_and_read():
    """Llama 3's RoPE does not fit in rope_theta alone."""
    target = random_target("llama3_rope")
    config = EagleConfig.for_target(target)
    assert EagleConfig.from_dict(config.to_dict()).layer.rope_parameters == target.config.rope_parameters


def test_scaled_rope_of_older_files_is_read(target):
    """Which keep its base apart, in rope_theta."""
    fields = EagleConfig.for_target(target).to_dict() | {"rope_theta": LLAMA3_ROPE["rope_theta"]}
    fields["rope_scaling"] = {name: value for name, value in LLAMA3_ROPE.items() if name != "rope_theta"}
    assert EagleConfig.from_dict(fields).layer.rope_parameters == LLAMA3_ROPE


def test_bias_is_expected_where_the_config_does_not_say(folder, target):
    edit_config(folder, drop=("bias",))
    with pytest.raises(CheckpointError, match=r"expected a tensor fc\.bias of shape \[24\], found none"):
        load_eagle(folder, target)
    edit_weights(folder, put={"fc.bias": torch.ones(24)})
    assert torch.equal(load_eagle(folder, target).fc.bias, torch.ones(24))


def test_an_output_matrix_must_be_the_targets(folder, target):
    """Some files hold the one that the head is run with; another would be left out of what is measured."""
    edit_weights(folder, put={"lm_head.weight": target.output_matrix.clone()})
    assert set(load_eagle(folder, target).state_dict_public()) == TENSORS["eagle"]
    edit_weights(folder, put={"lm_head.weight": target.output_matrix + 1})
    with pytest.raises(CheckpointError, match=r"expected lm_head\.weight to be that of target tiny, .* another one"):
        load_eagle(folder, target)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": 36}, "expected hidden_size 24, that of target tiny, found 36"),
        ({"num_hidden_layers": 2}, "expected num_hidden_layers 1, found 2"),
    ],
)
def test_layers_that_do_not_fit_are_refused(folder, target, fields, message):
    edit_config(folder, **fields)
    with pytest.raises(ValueError, match=message):
        load_eagle(folder, target)
