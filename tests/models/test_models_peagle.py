"""P-EAGLE heads: layers and masked pairs written out plainly, both layouts, and what does not fit."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from harness.models.checkpoint import CheckpointError
from harness.models.eagle3 import load_eagle3
from harness.models.head import save_head
from harness.models.peagle import load_peagle
from tests.support.plain_layers import attention, eagle3_features, eagle3_layer, mlp, rms_norm, with_prefix
from tests.support.tiny_heads import (
    AUX_LAYERS,
    MASK_TOKEN_ID,
    NUM_MASKED,
    load_quietly,
    logits_of,
    make_head,
    masked_logits,
)
from tests.support.tiny_models import TOLERANCE, VOCAB_SIZE, edit_config, edit_weights, random_target


@pytest.fixture
def target():
    return random_target()


@pytest.fixture
def folder(tmp_path, target):
    save_head(make_head("peagle", target), tmp_path)
    return tmp_path


def plain_logits(weights, embedding, config, tokens, aux):
    """[T + M, V_draft], from the description of the format."""
    eps = config.layer.rms_norm_eps
    joined = torch.cat((torch.cat(aux, dim=-1), weights["mask_hidden"].view(1, -1).expand(NUM_MASKED, -1)))
    token_ids = torch.cat((tokens[0, 1:], torch.full((NUM_MASKED,), config.mask_token_id)))
    states = eagle3_layer(eagle3_features(joined, weights, config), embedding[token_ids], weights, config)
    for index in range(1, config.layer.num_hidden_layers):
        layer = with_prefix(weights, f"layers.{index}.")
        entering = rms_norm(states, layer["input_layernorm.weight"], eps)
        states = states + attention(entering, layer, torch.arange(token_ids.numel()), config.layer)
        states = states + mlp(rms_norm(states, layer["post_attention_layernorm.weight"], eps), layer)
    return rms_norm(states, weights["norm.weight"], eps) @ weights["lm_head.weight"].T


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_hidden_layers": 1},
        {"num_hidden_layers": 4, "norm_before_residual": True},
        {"norm_before_fc": True},
        {"fc_norm": True},
    ],
    ids=["two layers", "one layer", "four, norm before residual", "norm before fc", "fc norm"],
)
def test_forward_and_format_equal_the_plain_description(tmp_path, target, changes):
    """Would catch features of a masked pair that pass by a norm or fc, and layers that share one place in the cache."""
    head = make_head("peagle", target, **changes)
    save_head(head, tmp_path)
    loaded = load_quietly("peagle", tmp_path, target)
    tokens, aux, logits = masked_logits(loaded)
    plain = plain_logits(head.state_dict_public(), target.embed_weight, head.config, tokens, aux)
    torch.testing.assert_close(logits, plain, **TOLERANCE)
    assert loaded.config.to_dict() == head.config.to_dict()
    assert torch.equal(logits_of(head), logits)


def test_the_layout_is_that_of_speculators(folder, target):
    data = json.loads((folder / "config.json").read_text())
    assert data["speculators_model_type"] == data["speculators_config"]["algorithm"] == "peagle"
    assert data["mask_token_id"] == MASK_TOKEN_ID and data["transformer_layer_config"]["num_hidden_layers"] == 2
    tensors = load_file(folder / "model.safetensors")
    assert tensors["mask_hidden"].shape == (1, 1, 72)
    # the first layer sees embedding and features side by side, the others states alone
    widths = [tensors[f"layers.{index}.self_attn.q_proj.weight"].shape[1] for index in (0, 1)]
    assert widths == [48, 24] and "layers.1.hidden_norm.weight" not in tensors


@pytest.mark.parametrize("name", ["pard_token", "ptd_token_id", "mask_token_id"])
@pytest.mark.parametrize("shape", [(1, 72), (72,)])
def test_the_layout_of_vllm_is_read(folder, target, name, shape):
    """An EAGLE-3 config with the mask token beside it; leading ones of mask_hidden say nothing."""
    expected = logits_of(load_peagle(folder, target))
    edit_weights(folder, put={"mask_hidden": load_file(folder / "model.safetensors")["mask_hidden"].view(shape)})
    data = json.loads((folder / "config.json").read_text())
    own = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 9, name: MASK_TOKEN_ID}
    own |= {"eagle_aux_hidden_state_layer_ids": list(AUX_LAYERS), "parallel_drafting": True}
    (folder / "config.json").write_text(json.dumps(data["transformer_layer_config"] | own))
    assert torch.equal(logits_of(load_quietly("peagle", folder, target)), expected)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mask_token_id": None}, "mask token as one number in mask_token_id, pard_token or ptd_token_id, found none"),
        ({"mask_token_id": "11"}, "found mask_token_id '11'"),
        ({"mask_token_id": True}, "found mask_token_id True"),
        ({"pard_token": 12}, "found mask_token_id 11, pard_token 12"),
        (
            {"mask_token_id": VOCAB_SIZE},
            f"expected mask_token_id from 0 to 60, a token of target tiny, found {VOCAB_SIZE}",
        ),
        ({"mask_token_id": -1}, "expected mask_token_id from 0 to 60, a token of target tiny, found -1"),
        ({"parallel_drafting": False}, "found parallel_drafting false; run it with drafter=eagle3"),
        ({"speculators_model_type": "dflash"}, "expected speculators_model_type 'peagle', found 'dflash'"),
    ],
)
def test_a_config_that_does_not_fit_is_refused_in_one_line(folder, target, fields, message):
    edit_config(folder, **fields)
    with pytest.raises(ValueError, match=message) as refused:
        load_peagle(folder, target)
    assert "\n" not in str(refused.value)


def test_a_head_without_mask_hidden_is_refused(folder, target):
    edit_weights(folder, drop="mask_hidden")
    with pytest.raises(CheckpointError, match=r"a tensor mask_hidden of 72 numbers, found none; .*drafter=eagle3"):
        load_peagle(folder, target)


def test_mask_hidden_of_another_width_is_refused(folder, target):
    edit_weights(folder, put={"mask_hidden": torch.zeros(1, 1, 48)})
    with pytest.raises(CheckpointError, match=r"mask_hidden of shape \[1, 1, 72\], found \[1, 1, 48\]"):
        load_peagle(folder, target)


@pytest.mark.parametrize(
    ("num_layers", "message"),
    [(0, "expected num_hidden_layers 1 or more, found 0"), (1, r"9 tensors that nothing reads: layers\.1\.")],
)
def test_layers_are_those_that_the_config_counts(folder, target, num_layers, message):
    layers = json.loads((folder / "config.json").read_text())["transformer_layer_config"]
    edit_config(folder, transformer_layer_config=layers | {"num_hidden_layers": num_layers})
    with pytest.raises(ValueError, match=message):
        load_peagle(folder, target)


def test_an_eagle3_head_does_not_pass_for_one_nor_the_other_way_round(folder, target):
    with pytest.raises(ValueError, match="expected speculators_model_type 'eagle3', found 'peagle'"):
        load_eagle3(folder, target)
