"""EAGLE-3 heads compute what the layer written out plainly does; both layouts of files, and what does not fit."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from harness.models.aux_layer_ids import default_aux_layers
from harness.models.checkpoint import CheckpointError
from harness.models.eagle3 import Eagle3Head, load_eagle3
from harness.models.eagle3_config import Eagle3Config
from harness.models.general.target import GeneralTarget
from harness.models.head import save_head
from tests.support.any_models import tiny_model
from tests.support.plain_layers import eagle3_features, eagle3_layer, rms_norm
from tests.support.tiny_heads import AUX_LAYERS, DRAFT_IDS, load_quietly, make_head, run
from tests.support.tiny_models import NUM_LAYERS, TOLERANCE, VOCAB_SIZE, edit_config, edit_weights, random_target

OWN_SIZES = {"intermediate_size": 52, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 10}


@pytest.fixture
def target():
    return random_target()


@pytest.fixture
def folder(tmp_path, target):
    save_head(make_head("eagle3", target), tmp_path)
    return tmp_path


def assert_equals_plain(head, embedding):
    """Next features and logits of each row are those of the description of the format."""
    tokens, target_output, output = run(head)
    weights, config = head.state_dict_public(), head.config
    for row in range(2):
        joined = torch.cat([state[row, :-1] for state in target_output.aux], dim=-1)
        states = eagle3_layer(eagle3_features(joined, weights, config), embedding[tokens[row, 1:]], weights, config)
        hidden = rms_norm(states, weights["norm.weight"], config.layer.rms_norm_eps)
        expected = hidden if config.norm_output else states
        torch.testing.assert_close(output.next_features[row], expected, **TOLERANCE)
        logits = hidden @ weights["lm_head.weight"].T
        torch.testing.assert_close(head.logits(output.hidden)[row], logits, **TOLERANCE)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm_before_residual": True},
        {"norm_before_fc": True},
        {"fc_norm": True},
        {"norm_output": True},
        {"norm_before_residual": True, "norm_before_fc": True, "norm_output": True},
        OWN_SIZES,
        {"attention_bias": True, "mlp_bias": True},
    ],
    ids=lambda changes: ", ".join(changes) or "plain",
)
def test_forward_and_format_equal_the_plain_description(tmp_path, target, changes):
    head = make_head("eagle3", target, **changes)
    assert_equals_plain(head, target.embed_weight)
    save_head(head, tmp_path)
    loaded = load_quietly("eagle3", tmp_path, target)
    assert loaded.config.to_dict() == head.config.to_dict()
    assert torch.equal(run(loaded)[2].hidden, run(head)[2].hidden)


def test_default_auxiliary_layers():
    assert default_aux_layers(36) == (2, 18, 33) and default_aux_layers(10) == (2, 5, 7)


def test_a_head_of_another_width_needs_its_own_embedding(tmp_path, target):
    changes = {"hidden_size": 36, "head_dim": 6}
    with pytest.raises(ValueError, match="expected embed_tokens of its own, because its hidden_size 36"):
        make_head("eagle3", target, **changes)
    head = make_head("eagle3", target, own_embedding=True, **changes)
    save_head(head, tmp_path)
    loaded = load_eagle3(tmp_path, target)
    assert loaded.fc.weight.shape == (36, 72)
    assert_equals_plain(loaded, head.embed_tokens.weight)


def test_the_whole_vocabulary_needs_no_mapping(tmp_path, target):
    save_head(make_head("eagle3", target, None), tmp_path)
    for name in ("d2t", "t2d"):
        edit_weights(tmp_path, drop=name)
    assert load_eagle3(tmp_path, target).draft_to_target is None


def test_the_layout_is_that_of_speculators(folder, target):
    tensors = load_file(folder / "model.safetensors")
    # offsets: target id = draft id + d2t[draft id]
    assert torch.equal(tensors["d2t"] + torch.arange(9), DRAFT_IDS)
    assert torch.equal(tensors["t2d"].nonzero().flatten(), DRAFT_IDS)
    assert tensors["layers.0.self_attn.q_proj.weight"].shape == (48, 48)
    assert tensors["fc.weight"].shape == (24, 72)
    data = json.loads((folder / "config.json").read_text())
    assert data["speculators_model_type"] == "eagle3" and data["draft_vocab_size"] == 9
    assert data["transformer_layer_config"]["model_type"] == "llama"
    assert data["eagle_aux_hidden_state_layer_ids"] == [1, 2, 4]
    loaded = load_eagle3(folder, target)
    assert loaded.draft_to_target.tolist() == DRAFT_IDS.tolist() and loaded.aux_layers == AUX_LAYERS


def original_layout(folder, **fields):
    """Rewrite a folder: `midlayer.` for `layers.0.`, and the layer's fields among the head's own."""
    tensors = load_file(folder / "model.safetensors")
    renamed = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in tensors.items()}
    save_file(renamed, folder / "model.safetensors")
    data = json.loads((folder / "config.json").read_text())
    own = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 9, "torch_dtype": "float16"}
    (folder / "config.json").write_text(json.dumps(data["transformer_layer_config"] | own | fields))


def test_the_original_layout_is_read(folder, target):
    expected = load_eagle3(folder, target)
    original_layout(folder)
    loaded = load_quietly("eagle3", folder, target)
    assert loaded.aux_layers == default_aux_layers(NUM_LAYERS) == (2, 3, 4)
    assert loaded.config.norm_before_residual is False
    for name, tensor in expected.state_dict_public().items():
        assert torch.equal(loaded.state_dict_public()[name], tensor), name


def test_auxiliary_layers_of_a_nested_config_are_read(folder, target):
    original_layout(folder, eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 3, 6], "use_aux_hidden_state": True})
    assert load_eagle3(folder, target).aux_layers == (0, 3, 6)


def test_a_head_without_auxiliary_states_is_refused(folder, target):
    original_layout(folder, eagle_config={"use_aux_hidden_state": False})
    with pytest.raises(ValueError, match=r"use_aux_hidden_state = False in .*, of a head that reads one state"):
        load_eagle3(folder, target)


def test_absent_norm_before_residual_is_said_aloud(folder, target):
    edit_config(folder, drop=("norm_before_residual",))
    loaded = load_eagle3(folder, target)
    assert loaded.config.norm_before_residual is False
    assert ["norm_before_residual, and false is taken" in text for text in loaded.assumptions] == [True]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"norm_before_fc": True, "fc_norm": True}, "expected norm_before_fc or fc_norm, found both"),
        ({"target_hidden_size": 48}, "expected target_hidden_size 24, that of target tiny, found 48"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 18, 33]}, r"from 0 to 7, of a target of 7, .* found \[2, 18, 33\]"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(folder, target, fields, message):
    edit_config(folder, **fields)
    with pytest.raises(ValueError, match=message):
        load_eagle3(folder, target)


def test_mappings_that_are_missing_or_contradict_each_other_are_refused(folder, target):
    tensors = load_file(folder / "model.safetensors")
    drawable = torch.zeros(VOCAB_SIZE, dtype=torch.bool)
    drawable[:9] = True
    edit_weights(folder, put={"t2d": drawable})
    with pytest.raises(CheckpointError, match="expected d2t and t2d to name the same tokens"):
        load_eagle3(folder, target)
    edit_weights(folder, put={"d2t": torch.full((9,), VOCAB_SIZE)}, drop="t2d")
    with pytest.raises(ValueError, match=f"9 different token ids of a vocabulary of {VOCAB_SIZE}, .* from 61 to 69"):
        load_eagle3(folder, target)
    edit_weights(folder, put={"t2d": tensors["t2d"]}, drop="d2t")
    with pytest.raises(CheckpointError, match=r"expected a tensor d2t of shape \[9\]"):
        load_eagle3(folder, target)


def test_a_misshapen_fc_is_refused(folder, target):
    edit_weights(folder, put={"fc.weight": torch.ones(24, 48)})
    with pytest.raises(CheckpointError, match=r"fc\.weight of shape \[24, 72\], found \[24, 48\]"):
        load_eagle3(folder, target)


def test_rows_of_a_target_that_scales_its_logits_are_refused():
    """Would catch drafts of another law than the one that the head was trained for."""
    with_scale = GeneralTarget(tiny_model("granite"), None)
    with_scale.config.logits_scaling = 8.0
    config = Eagle3Config.for_target(with_scale, 8, aux_layers=(0, 1, 2))
    ids = torch.arange(8)
    assert Eagle3Head(config, with_scale, draft_token_ids=ids).has_own_output
    with pytest.raises(ValueError, match=r"found target .* with logits_scaling=8\.0; train the head"):
        Eagle3Head(config, with_scale, draft_token_ids=ids, own_output=False)
