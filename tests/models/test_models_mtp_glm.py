"""The MTP layer of GLM: its published formulas, transformers' own layer, its keys in a sharded checkpoint."""

from __future__ import annotations

import json
import warnings

import pytest
import torch
from safetensors.torch import load_file
from transformers.modeling_layers import MtpLayer
from transformers.models.glm4_moe_lite import modeling_glm4_moe_lite as glm

from harness.models.checkpoint import CheckpointError
from harness.models.mtp import MtpConfig, load_mtp, save_mtp
from harness.models.target import load_target
from tests.support.plain_latent_layers import experts, latent_attention
from tests.support.plain_layers import rms_norm, with_prefix
from tests.support.tiny_glm import (
    CONFIG,
    MTP_PREFIX,
    NUM_LAYERS,
    TOLERANCE,
    edit_shards,
    mtp_tensors,
    random_glm,
    save_glm_folder,
)
from tests.support.tiny_models import edit_config, positions_from, random_tokens

OWN = {f"{MTP_PREFIX}embed_tokens.weight", f"{MTP_PREFIX}shared_head.head.weight"}


@pytest.fixture
def folder(tmp_path):
    causal_lm = random_glm()
    return save_glm_folder(tmp_path, causal_lm, mtp_tensors(causal_lm.config))


def features_of(target, tokens):
    """[B, T, H] of the target's own tokens."""
    return target.forward(tokens, positions_from([0] * tokens.shape[0], tokens.shape[1]), None).hidden


def plain_forward(weights, embedding, output_matrix, config, token_ids, features):
    """Next features and logits [T, ...] of one row that starts at position 0, from the description."""
    eps, layer = config.rms_norm_eps, with_prefix(weights, MTP_PREFIX)
    embedded = embedding[token_ids].clone()
    embedded[0] = 0
    joined = torch.cat(
        (rms_norm(embedded, layer["enorm.weight"], eps), rms_norm(features, layer["hnorm.weight"], eps)), dim=-1
    )
    states = joined @ layer["eh_proj.weight"].T
    normed = rms_norm(states, layer["input_layernorm.weight"], eps)
    states = states + latent_attention(normed, layer, torch.arange(token_ids.numel()), config)
    states = states + experts(rms_norm(states, layer["post_attention_layernorm.weight"], eps), layer, config)
    hidden = rms_norm(states, layer["shared_head.norm.weight"], eps)
    return hidden, hidden @ output_matrix.T


@pytest.mark.parametrize("shared", [False, True], ids=["matrices of its own", "the target's matrices"])
def test_forward_equals_the_plain_description(tmp_path, shared):
    causal_lm = random_glm()
    weights = mtp_tensors(causal_lm.config)
    if shared:
        weights = {name: tensor for name, tensor in weights.items() if name not in OWN}
    target = load_target(save_glm_folder(tmp_path, causal_lm, weights))
    head = load_mtp(None, target)
    embedding = weights.get(f"{MTP_PREFIX}embed_tokens.weight", target.embed_weight)
    output_matrix = weights.get(f"{MTP_PREFIX}shared_head.head.weight", causal_lm.lm_head.weight)
    tokens = random_tokens(2, 8)
    states = features_of(target, tokens)[:, :-1]
    output = head(tokens[:, 1:], states, positions_from([0, 0], 7), None)
    for row in range(2):
        features, logits = plain_forward(weights, embedding, output_matrix, target.config, tokens[row, 1:], states[row])
        torch.testing.assert_close(output.next_features[row], features, **TOLERANCE)
        torch.testing.assert_close(head.logits(output.hidden)[row], logits, **TOLERANCE)


def test_forward_equals_the_layer_of_transformers(folder):
    """Which zeroes no embedding at position 0: so from position 1 on."""
    target = load_target(folder)
    head = load_mtp(None, target)
    config = head.layer_config
    config._attn_implementation, config._experts_implementation = "eager", "eager"
    layer = MtpLayer(config, glm.Glm4MoeLiteDecoderLayer, glm.Glm4MoeLiteRMSNorm, 0).eval()
    renamed = {name.removeprefix(MTP_PREFIX): tensor for name, tensor in head.state_dict().items()}
    own = {name for name in renamed if name.startswith(("enorm.", "hnorm.", "eh_proj."))}
    state = {name if name in own else f"mtp_block.{name}": tensor for name, tensor in renamed.items()}
    state["post_norm.weight"] = state.pop("mtp_block.shared_head.norm.weight")
    embedding = state.pop("mtp_block.embed_tokens.weight")
    del state["mtp_block.shared_head.head.weight"]
    layer.load_state_dict(state)
    tokens, positions = random_tokens(2, 8), positions_from([1, 3], 7)
    states = features_of(target, tokens)[:, :-1]
    mask = torch.full((7, 7), float("-inf")).triu(1)[None, None]
    rotation = head.rotary(states, positions)
    expected = layer(embedding[tokens[:, 1:]], states, rotation, mask, positions, None)
    output = head(tokens[:, 1:], states, positions, None)
    torch.testing.assert_close(output.hidden, expected, **TOLERANCE)
    torch.testing.assert_close(output.next_features, expected, **TOLERANCE)


def test_the_chain_of_another_target_reads_the_state_before_the_norm(folder):
    """GLM's own readers disagree about it; the built-in MTP layer was trained that way."""
    target = load_target(folder)
    assert MtpConfig.for_target(target).norm_output and not MtpConfig(NUM_LAYERS).norm_output
    head = load_mtp(None, target)
    states, tokens, positions = torch.ones(1, 2, 24), random_tokens(1, 2), positions_from([4], 2)
    after = head(tokens, states, positions, None)
    head.config = MtpConfig(NUM_LAYERS, own_head=True, own_embedding=True)
    before = head(tokens, states, positions, None)
    torch.testing.assert_close(head.block.shared_head["norm"](before.next_features), after.next_features)
    assert torch.equal(before.hidden, after.hidden)


def test_pairs_through_slots_equal_pairs_at_once(folder):
    """Rows of one slot cut apart, and a chain of guesses that the next pairs overwrite."""
    target = load_target(folder)
    head = load_mtp(None, target)
    tokens = random_tokens(1, 10)
    states = features_of(target, tokens)[:, :-1]
    expected = head(tokens[:, 1:], states, positions_from([0], 9), None).hidden[0]
    cache = head.new_cache(num_slots=3, capacity=12)
    assert cache.num_bytes == 3 * 12 * (CONFIG["kv_lora_rank"] + CONFIG["qk_rope_head_dim"]) * 4

    def through_slots(rows, token_ids, features, start):
        positions = positions_from(start, token_ids.shape[1])
        return head(token_ids, features, positions, cache.view(rows, positions, int(positions.max()) + 1)).hidden

    rows = torch.tensor([2, 2])
    first = through_slots(rows, tokens[:, 1:7].view(2, 3), states[:, :6].reshape(2, 3, -1), [0, 3])
    through_slots(rows[:1], random_tokens(1, 2, seed=9), torch.ones(1, 2, 24), [6])
    second = through_slots(rows[:1], tokens[:, 7:], states[:, 6:], [6])
    torch.testing.assert_close(torch.cat((first.flatten(0, 1), second[0])), expected, **TOLERANCE)


def test_the_checkpoint_is_read_silently_and_every_tensor_has_its_place(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        head = load_mtp(None, load_target(folder))
    stored = mtp_tensors(head.layer_config)
    found = head.state_dict_public()
    assert found.keys() == stored.keys() and all(torch.equal(found[name], stored[name]) for name in stored)
    (told,) = head.assumptions
    assert head.path == folder and "after it is taken, as transformers and SGLang do" in told
    assert head.config == MtpConfig(NUM_LAYERS, own_head=True, own_embedding=True, norm_output=True)


def test_a_dense_first_layer_does_not_make_the_mtp_layer_dense(tmp_path):
    causal_lm = random_glm("two dense layers")
    save_glm_folder(tmp_path, causal_lm, mtp_tensors(causal_lm.config))
    assert hasattr(load_mtp(None, load_target(tmp_path)).block.mlp, "experts")


def test_only_the_routers_bias_stays_in_float32(folder):
    head = load_mtp(None, load_target(folder, dtype=torch.bfloat16))
    kept = {name: tensor.dtype for name, tensor in head.state_dict().items()}
    bias = f"{MTP_PREFIX}mlp.gate.e_score_correction_bias"
    assert kept.pop(bias) == torch.float32 and set(kept.values()) == {torch.bfloat16}
    assert torch.equal(head.state_dict()[bias], mtp_tensors(head.layer_config)[bias])


def test_an_unsharded_folder_goes_there_and_back(tmp_path, folder):
    target = load_target(folder)
    head = load_mtp(None, target)
    single = save_glm_folder(tmp_path / "single", random_glm(), num_shards=1)
    save_mtp(head, single)
    names = {name for name in load_file(single / "model.safetensors") if name.startswith(MTP_PREFIX)}
    assert names == mtp_tensors(head.layer_config).keys()
    again = load_mtp(None, load_target(single)).state_dict_public()
    assert all(torch.equal(tensor, again[name]) for name, tensor in head.state_dict_public().items())


def test_a_missing_expert_is_named(folder):
    edit_shards(folder, drop=f"{MTP_PREFIX}mlp.experts.5.gate_proj.weight")
    with pytest.raises(CheckpointError, match=r"3\.mlp\.experts\.5\.gate_proj\.weight of shape \[16, 24\], found none"):
        load_mtp(None, load_target(folder))


def test_a_tensor_that_the_layer_does_not_account_for_is_refused(folder):
    edit_shards(folder, put={f"{MTP_PREFIX}mlp.experts.6.up_proj.weight": torch.ones(16, 24)})
    with pytest.raises(CheckpointError, match=r"1 that it does not: model\.layers\.3\.mlp\.experts\.6\.up_proj"):
        load_mtp(None, load_target(folder))


def test_a_layer_number_is_that_of_the_configuration(folder):
    """Layers 0 to 2 are the target's; a file that counts one fewer has its last layer where MTP is looked for."""
    edit_config(folder, num_hidden_layers=2)
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    assert "model.layers.2.mlp.gate.weight" in index
    with pytest.raises(CheckpointError, match=r"tensors that nothing reads: model\.layers\.2\.input_layernorm"):
        load_target(folder)
