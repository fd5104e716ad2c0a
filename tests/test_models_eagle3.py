"""EAGLE-3 heads: the layer written out plainly, both layouts, every flag of the config, and what does not fit."""

from __future__ import annotations

import json
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file

from harness.models.checkpoint import CheckpointError
from harness.models.eagle3 import Eagle3Config, Eagle3Head, load_eagle3
from harness.models.eagle3_config import default_aux_layers
from harness.models.head import save_head
from tests.plain_layers import eagle3_features, eagle3_layer, rms_norm
from tests.tiny_models import (
    NUM_LAYERS,
    TOLERANCE,
    VOCAB_SIZE,
    edit_config,
    edit_weights,
    positions_from,
    random_target,
    random_tokens,
    randomize,
    word_tokenizer,
)

KEYS = {
    "fc.weight",
    "norm.weight",
    "lm_head.weight",
    "d2t",
    "t2d",
    "layers.0.hidden_norm.weight",
    "layers.0.input_layernorm.weight",
    "layers.0.post_attention_layernorm.weight",
    "layers.0.self_attn.q_proj.weight",
    "layers.0.self_attn.k_proj.weight",
    "layers.0.self_attn.v_proj.weight",
    "layers.0.self_attn.o_proj.weight",
    "layers.0.mlp.gate_proj.weight",
    "layers.0.mlp.up_proj.weight",
    "layers.0.mlp.down_proj.weight",
}
DRAFT_IDS = torch.tensor([0, 1, 4, 9, 16, 25, 36, 49, 60])
AUX_LAYERS = (1, 2, 4)
OWN_SIZES = {"intermediate_size": 52, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 10}


@pytest.fixture
def target():
    return random_target()


def make_head(target, own_embedding=False, **changes):
    config = Eagle3Config.for_target(target, DRAFT_IDS.numel(), aux_layers=AUX_LAYERS, **changes)
    head = Eagle3Head(config, target, draft_token_ids=DRAFT_IDS, own_embedding=own_embedding)
    randomize(head, 3)
    return head


@pytest.fixture
def folder(tmp_path, target):
    save_head(make_head(target), tmp_path)
    return tmp_path


def run(head, num_pairs=6):
    tokens = random_tokens(2, num_pairs + 1)
    output = head.target.forward(tokens, positions_from([0, 0], num_pairs + 1), None, head.aux_layers)
    features = head.features(output)[:, :-1]
    aux = tuple(state[:, :-1] for state in output.aux)
    return tokens, aux, head(tokens[:, 1:], features, positions_from([0, 0], num_pairs), None)


def plain_forward(weights, embedding, config, token_ids, aux):
    """Next features and logits [T, ...] of one row, from the description of the format."""
    features = eagle3_features(torch.cat(tuple(aux), dim=-1), weights, config)
    states = eagle3_layer(features, embedding[token_ids], weights, config)
    hidden = rms_norm(states, weights["norm.weight"], config.layer.rms_norm_eps)
    return (hidden if config.norm_output else states), hidden @ weights["lm_head.weight"].T


def assert_equals_plain(head, embedding):
    tokens, aux, output = run(head)
    for row in range(2):
        features, logits = plain_forward(
            head.state_dict_public(), embedding, head.config, tokens[row, 1:], [state[row] for state in aux]
        )
        torch.testing.assert_close(output.next_features[row], features, **TOLERANCE)
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
    ids=[
        "plain",
        "norm before residual",
        "norm before fc",
        "fc norm",
        "norm output",
        "three flags",
        "own sizes",
        "biases",
    ],
)
def test_forward_and_format_equal_the_plain_description(tmp_path, target, changes):
    head = make_head(target, **changes)
    assert_equals_plain(head, target.embed_weight)
    save_head(head, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = load_eagle3(tmp_path, target)
    assert loaded.config.to_dict() == head.config.to_dict()
    assert_equals_plain(loaded, target.embed_weight)
    torch.testing.assert_close(run(loaded)[2].hidden, run(head)[2].hidden, rtol=0, atol=0)


def test_the_layout_is_that_of_speculators(folder, target):
    tensors = load_file(folder / "model.safetensors")
    assert set(tensors) == KEYS
    # offsets: target id = draft id + d2t[draft id]
    assert torch.equal(tensors["d2t"] + torch.arange(9), DRAFT_IDS) and tensors["d2t"].dtype == torch.int64
    assert torch.equal(tensors["t2d"].nonzero().flatten(), DRAFT_IDS) and tensors["t2d"].dtype == torch.bool
    assert tensors["layers.0.self_attn.q_proj.weight"].shape == (48, 48)
    assert tensors["fc.weight"].shape == (24, 72)
    data = json.loads((folder / "config.json").read_text())
    assert data["speculators_model_type"] == "eagle3" and data["draft_vocab_size"] == 9
    assert data["transformer_layer_config"]["model_type"] == "llama"
    assert data["eagle_aux_hidden_state_layer_ids"] == [1, 2, 4]
    loaded = load_eagle3(folder, target)
    assert loaded.draft_to_target.tolist() == DRAFT_IDS.tolist() and loaded.aux_layers == AUX_LAYERS
    assert loaded.path == folder and loaded.unused_keys == ()


def test_bfloat16_files_keep_their_index_tensors(tmp_path, target):
    save_head(make_head(target), tmp_path, torch.bfloat16)
    tensors = load_file(tmp_path / "model.safetensors")
    assert tensors["d2t"].dtype == torch.int64 and tensors["fc.weight"].dtype == torch.bfloat16
    assert load_eagle3(tmp_path, target).fc.weight.dtype == torch.float32


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
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = load_eagle3(folder, target)
    assert loaded.aux_layers == default_aux_layers(NUM_LAYERS) == (2, 3, 4)
    assert loaded.config.norm_before_residual is False
    for name, tensor in expected.state_dict_public().items():
        assert torch.equal(loaded.state_dict_public()[name], tensor), name


def test_auxiliary_layers_of_a_nested_config_are_read(folder, target):
    original_layout(folder, eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 3, 6], "use_aux_hidden_state": True})
    assert load_eagle3(folder, target).aux_layers == (0, 3, 6)


def test_a_head_without_auxiliary_states_is_refused(folder, target):
    original_layout(folder, eagle_config={"use_aux_hidden_state": False})
    with pytest.raises(ValueError, match="expected a head fed with auxiliary states"):
        load_eagle3(folder, target)


def test_default_auxiliary_layers():
    assert default_aux_layers(36) == (2, 18, 33) and default_aux_layers(10) == (2, 5, 7)


def test_absent_norm_before_residual_is_said_aloud(folder, target):
    edit_config(folder, drop=("norm_before_residual",))
    with pytest.warns(UserWarning, match="norm_before_residual is absent; false is taken"):
        assert load_eagle3(folder, target).config.norm_before_residual is False


def test_unknown_fields_are_reported(folder, target):
    edit_config(folder, norm_everything=True, speculators_version="0.9.0")
    with pytest.warns(UserWarning, match="fields that this version does not know: norm_everything$"):
        load_eagle3(folder, target)


def test_unknown_fields_of_the_layer_are_reported(folder, target):
    data = json.loads((folder / "config.json").read_text())
    edit_config(folder, transformer_layer_config=data["transformer_layer_config"] | {"attention_twice": 1})
    with pytest.warns(UserWarning, match="fields that this version does not know: attention_twice$"):
        load_eagle3(folder, target)


def test_unknown_fields_of_the_original_layout_are_reported(folder, target):
    original_layout(folder, norm_everything=True, eagle_config={"return_hidden_post_norm": True})
    with pytest.warns(UserWarning) as said:
        load_eagle3(folder, target)
    unknown = [str(warning.message).partition("config.json")[2] for warning in said]
    assert unknown == [
        ": fields that this version does not know: norm_everything",
        ", eagle_config: fields that this version does not know: return_hidden_post_norm",
    ]


def test_contradicting_norms_are_refused(folder, target):
    edit_config(folder, norm_before_fc=True, fc_norm=True)
    with pytest.raises(ValueError, match="expected norm_before_fc or fc_norm, found both"):
        load_eagle3(folder, target)


def test_a_norm_the_config_denies_is_refused(folder, target):
    edit_weights(folder, put={"input_norm.weight": torch.ones(72)})
    with pytest.raises(CheckpointError, match=r"1 that it does not: input_norm\.weight"):
        load_eagle3(folder, target)


def test_an_embedding_of_its_own_is_used(tmp_path, target):
    head = make_head(target, own_embedding=True)
    save_head(head, tmp_path)
    assert set(load_file(tmp_path / "model.safetensors")) == KEYS | {"embed_tokens.weight"}
    assert_equals_plain(load_eagle3(tmp_path, target), head.embed_tokens.weight)


def test_an_embedding_equal_to_the_targets_is_shared(folder, target):
    edit_weights(folder, put={"embed_tokens.weight": target.embed_weight.clone()})
    assert set(load_eagle3(folder, target).state_dict_public()) == KEYS


def test_a_head_of_another_width_needs_its_own_embedding(tmp_path, target):
    changes = {"hidden_size": 36, "head_dim": 6}
    with pytest.raises(ValueError, match="expected embed_tokens of its own, because its hidden_size 36"):
        make_head(target, **changes)
    head = make_head(target, own_embedding=True, **changes)
    save_head(head, tmp_path)
    loaded = load_eagle3(tmp_path, target)
    assert loaded.fc.weight.shape == (36, 72)
    assert_equals_plain(loaded, head.embed_tokens.weight)


def test_the_whole_vocabulary_needs_no_mapping(tmp_path, target):
    config = Eagle3Config.for_target(target, VOCAB_SIZE, aux_layers=AUX_LAYERS)
    save_head(Eagle3Head(config, target), tmp_path)
    for name in ("d2t", "t2d"):
        edit_weights(tmp_path, drop=name)
    assert load_eagle3(tmp_path, target).draft_to_target is None


def test_a_reduced_vocabulary_needs_its_mapping(folder, target):
    edit_weights(folder, drop="d2t")
    with pytest.raises(CheckpointError, match=r"expected a tensor d2t of shape \[9\]"):
        load_eagle3(folder, target)


def test_mappings_that_contradict_each_other_are_refused(folder, target):
    drawable = torch.zeros(VOCAB_SIZE, dtype=torch.bool)
    drawable[:9] = True
    edit_weights(folder, put={"t2d": drawable})
    with pytest.raises(CheckpointError, match="expected d2t and t2d to name the same tokens"):
        load_eagle3(folder, target)


def test_a_mapping_out_of_the_vocabulary_is_refused(folder, target):
    edit_weights(folder, put={"d2t": torch.full((9,), VOCAB_SIZE)}, drop="t2d")
    with pytest.raises(ValueError, match=f"9 different token ids of a vocabulary of {VOCAB_SIZE}, .* from 61 to 69"):
        load_eagle3(folder, target)


def test_a_head_of_another_target_is_refused(folder, target):
    edit_config(folder, target_hidden_size=48)
    with pytest.raises(ValueError, match="expected target_hidden_size 24, that of target tiny, found 48"):
        load_eagle3(folder, target)


def test_auxiliary_layers_the_target_does_not_have_are_refused(folder, target):
    edit_config(folder, eagle_aux_hidden_state_layer_ids=[2, 18, 33])
    with pytest.raises(ValueError, match=r"between 0 and 7, the layers of target tiny, found \[2, 18, 33\]"):
        load_eagle3(folder, target)


def test_another_vocabulary_size_is_refused(folder, target):
    data = json.loads((folder / "config.json").read_text())
    edit_config(folder, transformer_layer_config=data["transformer_layer_config"] | {"vocab_size": 99})
    with pytest.raises(ValueError, match=f"expected vocab_size {VOCAB_SIZE}, that of target tiny, found 99"):
        load_eagle3(folder, target)


def test_a_tokenizer_in_the_folder_must_be_the_targets(folder, target):
    word_tokenizer(swapped=True).save_pretrained(folder)
    with pytest.raises(ValueError, match="differs in 2, for example 'w7': id 7 in the target, 8 in the drafter"):
        load_eagle3(folder, target)


def test_a_misshapen_fc_is_refused(folder, target):
    edit_weights(folder, put={"fc.weight": torch.ones(24, 48)})
    with pytest.raises(CheckpointError, match=r"fc\.weight of shape \[24, 72\], found \[24, 48\]"):
        load_eagle3(folder, target)
