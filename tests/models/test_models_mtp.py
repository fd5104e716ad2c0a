"""MTP layers: the layer written out plainly, the target's folder there and back, and what does not fit."""

from __future__ import annotations

import json
import warnings

import pytest
import torch
from safetensors.torch import load_file

from harness.models.checkpoint import CheckpointError
from harness.models.mtp import MtpConfig, MtpHead, load_mtp, save_mtp
from harness.models.target import load_target
from tests.support.plain_layers import attention, mlp, rms_norm, with_prefix
from tests.support.tiny_models import (
    NUM_LAYERS,
    TOLERANCE,
    VOCAB_SIZE,
    edit_config,
    edit_weights,
    positions_from,
    random_causal_lm,
    random_target,
    random_tokens,
    randomize,
    save_target_folder,
)

PREFIX = f"model.layers.{NUM_LAYERS}."
LAYER_KEYS = {
    f"{PREFIX}{name}.weight"
    for name in (
        "enorm",
        "hnorm",
        "eh_proj",
        "shared_head.norm",
        "input_layernorm",
        "post_attention_layernorm",
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "self_attn.o_proj",
        "mlp.gate_proj",
        "mlp.up_proj",
        "mlp.down_proj",
    )
}


def make_head(target, **owned):
    head = MtpHead(MtpConfig(target.num_layers, **owned), target)
    randomize(head, 3)
    return head


@pytest.fixture
def folder(tmp_path):
    """A target's folder with an MTP layer in it."""
    save_target_folder(tmp_path, random_causal_lm())
    save_mtp(make_head(load_target(tmp_path)), tmp_path)
    return tmp_path


def run(head, num_pairs=6, start=0):
    tokens = random_tokens(2, num_pairs + 1)
    output = head.target.forward(tokens, positions_from([0, 0], num_pairs + 1), None)
    positions = positions_from([start, start], num_pairs)
    return tokens, output.hidden[:, :-1], head(tokens[:, 1:], head.features(output)[:, :-1], positions, None)


def plain_forward(weights, embedding, output_matrix, config, token_ids, features):
    """Next features and logits [T, ...] of one row that starts at position 0, from the description."""
    eps, layer = config.rms_norm_eps, with_prefix(weights, PREFIX)
    embedded = embedding[token_ids].clone()
    embedded[0] = 0
    joined = torch.cat(
        (rms_norm(embedded, layer["enorm.weight"], eps), rms_norm(features, layer["hnorm.weight"], eps)), dim=-1
    )
    states = joined @ layer["eh_proj.weight"].T
    normed = rms_norm(states, layer["input_layernorm.weight"], eps)
    states = states + attention(normed, layer, torch.arange(token_ids.numel()), config)
    states = states + mlp(rms_norm(states, layer["post_attention_layernorm.weight"], eps), layer)
    return states, rms_norm(states, layer["shared_head.norm.weight"], eps) @ output_matrix.T


@pytest.mark.parametrize("own_head", [False, True], ids=["the target's matrix", "a matrix of its own"])
@pytest.mark.parametrize("own_embedding", [False, True], ids=["the target's embedding", "an embedding of its own"])
def test_forward_equals_the_plain_description(own_head, own_embedding):
    target = random_target()
    head = make_head(target, own_head=own_head, own_embedding=own_embedding)
    weights = head.state_dict_public()
    embedding = weights.get(f"{PREFIX}embed_tokens.weight", target.embed_weight)
    output_matrix = weights.get(f"{PREFIX}shared_head.head.weight", target.causal_lm.lm_head.weight)
    assert (embedding is not target.embed_weight) == own_embedding
    tokens, states, output = run(head)
    for row in range(2):
        features, logits = plain_forward(weights, embedding, output_matrix, target.config, tokens[row, 1:], states[row])
        torch.testing.assert_close(output.next_features[row], features, **TOLERANCE)
        torch.testing.assert_close(head.logits(output.hidden)[row], logits, **TOLERANCE)


def test_the_embedding_counts_for_nothing_at_position_0_only():
    head = make_head(random_target())
    token_ids, features = random_tokens(1, 1), torch.randn(1, 1, 24)
    others = (token_ids + 1) % VOCAB_SIZE

    def states(tokens, position):
        return head(tokens, features, torch.tensor([[position]]), None).hidden

    assert torch.equal(states(token_ids, 0), states(others, 0))
    assert not torch.allclose(states(token_ids, 1), states(others, 1))


@pytest.mark.parametrize("kind", ["llama", "llama_tied", "qwen3"])
def test_the_format_goes_there_and_back(tmp_path, kind):
    save_target_folder(tmp_path, random_causal_lm(kind))
    head = make_head(load_target(tmp_path))
    before = set(load_file(tmp_path / "model.safetensors"))
    save_mtp(head, tmp_path)
    expected = LAYER_KEYS
    if kind == "qwen3":
        expected = expected | {f"{PREFIX}self_attn.q_norm.weight", f"{PREFIX}self_attn.k_norm.weight"}
    assert set(load_file(tmp_path / "model.safetensors")) == before | expected
    assert json.loads((tmp_path / "config.json").read_text())["num_nextn_predict_layers"] == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = load_mtp(None, load_target(tmp_path))
    assert loaded.path == tmp_path and loaded.config == MtpConfig(NUM_LAYERS)
    torch.testing.assert_close(run(loaded)[2].hidden, run(head)[2].hidden, rtol=0, atol=0)


def test_own_matrices_are_found_in_the_file(folder):
    target = load_target(folder)
    save_mtp(make_head(target, own_head=True, own_embedding=True), folder, torch.bfloat16)
    loaded = load_mtp(None, target)
    assert loaded.config == MtpConfig(NUM_LAYERS, own_head=True, own_embedding=True)
    extra = {f"{PREFIX}embed_tokens.weight", f"{PREFIX}shared_head.head.weight"}
    assert set(loaded.state_dict_public()) == LAYER_KEYS | extra
    assert loaded.block.eh_proj.weight.dtype == torch.float32


def test_further_layers_are_told(folder):
    """The first is run for every step of the chain."""
    edit_config(folder, num_nextn_predict_layers=2)
    edit_weights(folder, put={f"model.layers.{NUM_LAYERS + 1}.enorm.weight": torch.ones(24)})
    head = load_mtp(None, load_target(folder))
    assert head.assumptions == ("of its 2 MTP layers the first is run, once for each draft token",)


def test_saving_again_replaces_the_layer(folder):
    target = load_target(folder)
    save_mtp(make_head(target, own_head=True), folder)
    save_mtp(make_head(target), folder)
    assert f"{PREFIX}shared_head.head.weight" not in load_file(folder / "model.safetensors")


def test_the_layer_may_lie_in_another_folder(folder, tmp_path_factory):
    other = save_target_folder(tmp_path_factory.mktemp("other"), random_causal_lm())
    assert load_mtp(folder, load_target(other)).path == folder


def test_a_layer_of_another_folder_is_run_with_the_targets_fields(folder, tmp_path_factory):
    """Would catch a layer that was trained with other positions, run with those of the target."""
    other = save_target_folder(tmp_path_factory.mktemp("other"), random_causal_lm())
    edit_config(folder, rms_norm_eps=0.5)
    with pytest.raises(
        CheckpointError, match=r"rms_norm_eps = 0\.5 in config\.json, 1e-06 in that of the target, with"
    ):
        load_mtp(folder, load_target(other))
    edit_config(folder, rms_norm_eps=1e-6, attend_twice=True)
    with pytest.raises(CheckpointError, match="attend_twice = True in config"):
        load_mtp(folder, load_target(other))


def test_a_target_without_mtp_layers_is_refused(folder):
    edit_config(folder, num_nextn_predict_layers=0)
    target = load_target(folder)
    with pytest.raises(ValueError, match="expected num_nextn_predict_layers 1 or more, found 0"):
        load_mtp(None, target)


def test_announced_but_missing_layers_are_refused(tmp_path):
    save_target_folder(tmp_path, random_causal_lm())
    edit_config(tmp_path, num_nextn_predict_layers=1)
    with pytest.raises(CheckpointError, match=rf"expected the tensors model\.layers\.{NUM_LAYERS}\.\* that"):
        load_mtp(None, load_target(tmp_path))


def test_a_target_in_memory_has_no_folder_to_look_in():
    with pytest.raises(ValueError, match="expected a target loaded from a folder"):
        load_mtp(None, random_target())


def test_saving_needs_the_target_first(tmp_path):
    with pytest.raises(CheckpointError, match="save the target first"):
        save_mtp(make_head(random_target()), tmp_path)
