"""P-EAGLE heads: layers and masked pairs written out plainly, both layouts, and what does not fit."""

from __future__ import annotations

import json
import warnings

import pytest
import torch
from safetensors.torch import load_file

from harness.models.checkpoint import CheckpointError
from harness.models.eagle3 import load_eagle3
from harness.models.head import save_head
from harness.models.peagle import PEagleConfig, PEagleHead, load_peagle
from tests.support.plain_layers import attention, eagle3_features, eagle3_layer, mlp, rms_norm, with_prefix
from tests.support.tiny_models import (
    TOLERANCE,
    VOCAB_SIZE,
    edit_config,
    edit_weights,
    positions_from,
    random_target,
    random_tokens,
    randomize,
)

DRAFT_IDS = torch.tensor([0, 1, 4, 9, 16, 25, 36, 49, 60])
AUX_LAYERS, MASK_TOKEN_ID, NUM_MASKED = (1, 2, 4), 11, 3


@pytest.fixture
def target():
    return random_target()


def make_head(target, *, num_hidden_layers=2, mask_token_id=MASK_TOKEN_ID, **changes):
    changes |= {"num_hidden_layers": num_hidden_layers, "mask_token_id": mask_token_id}
    config = PEagleConfig.for_target(target, DRAFT_IDS.numel(), aux_layers=AUX_LAYERS, **changes)
    head = PEagleHead(config, target, draft_token_ids=DRAFT_IDS)
    randomize(head, 3)
    return head


@pytest.fixture
def folder(tmp_path, target):
    save_head(make_head(target), tmp_path)
    return tmp_path


def run(head, num_pairs=5):
    """Tokens [1, T + 1], states [T, H] of the target, and logits [T + M, V_draft] of known and masked pairs."""
    tokens = random_tokens(1, num_pairs + 1)
    output = head.target.forward(tokens, positions_from([0], num_pairs + 1), None, head.aux_layers)
    features = torch.cat((head.features(output)[:, :-1], head.mask_features().expand(1, NUM_MASKED, -1)), dim=1)
    token_ids = torch.cat((tokens[:, 1:], torch.full((1, NUM_MASKED), head.config.mask_token_id)), dim=1)
    hidden = head(token_ids, features, positions_from([0], num_pairs + NUM_MASKED), None).hidden
    return tokens, [state[0, :-1] for state in output.aux], head.logits(hidden)[0]


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
    head = make_head(target, **changes)
    save_head(head, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = load_peagle(tmp_path, target)
    tokens, aux, logits = run(loaded)
    plain = plain_logits(head.state_dict_public(), target.embed_weight, head.config, tokens, aux)
    torch.testing.assert_close(logits, plain, **TOLERANCE)
    assert loaded.config.to_dict() == head.config.to_dict()
    assert torch.equal(run(head)[2], logits)


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
    expected = run(load_peagle(folder, target))[2]
    edit_weights(folder, put={"mask_hidden": load_file(folder / "model.safetensors")["mask_hidden"].view(shape)})
    data = json.loads((folder / "config.json").read_text())
    own = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 9, name: MASK_TOKEN_ID}
    own |= {"eagle_aux_hidden_state_layer_ids": list(AUX_LAYERS), "parallel_drafting": True}
    (folder / "config.json").write_text(json.dumps(data["transformer_layer_config"] | own))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(run(load_peagle(folder, target))[2], expected)


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


def test_no_layers_are_refused(folder, target):
    data = json.loads((folder / "config.json").read_text())
    edit_config(folder, transformer_layer_config=data["transformer_layer_config"] | {"num_hidden_layers": 0})
    with pytest.raises(ValueError, match="expected num_hidden_layers 1 or more, found 0"):
        load_peagle(folder, target)


def test_a_head_without_mask_hidden_is_refused(folder, target):
    edit_weights(folder, drop="mask_hidden")
    with pytest.raises(CheckpointError, match=r"a tensor mask_hidden of 72 numbers, found none; .*drafter=eagle3"):
        load_peagle(folder, target)


def test_mask_hidden_of_another_width_is_refused(folder, target):
    edit_weights(folder, put={"mask_hidden": torch.zeros(1, 1, 48)})
    with pytest.raises(CheckpointError, match=r"mask_hidden of shape \[1, 1, 72\], found \[1, 1, 48\]"):
        load_peagle(folder, target)


def test_layers_that_the_config_does_not_count_are_refused(folder, target):
    data = json.loads((folder / "config.json").read_text())
    edit_config(folder, transformer_layer_config=data["transformer_layer_config"] | {"num_hidden_layers": 1})
    with pytest.raises(CheckpointError, match=r"9 tensors that nothing reads: layers\.1\."):
        load_peagle(folder, target)


def test_an_eagle3_head_does_not_pass_for_one_nor_the_other_way_round(folder, target):
    with pytest.raises(ValueError, match="expected speculators_model_type 'eagle3', found 'peagle'"):
        load_eagle3(folder, target)
