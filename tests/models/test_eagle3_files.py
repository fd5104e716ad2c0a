"""EAGLE-3 heads in files: both layouts, every field of the config, and what does not fit."""

from __future__ import annotations

import json
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file

from harness.models.aux_layer_ids import default_aux_layers
from harness.models.checkpoint import CheckpointError
from harness.models.eagle3 import load_eagle3
from harness.models.head import save_head
from tests.support.eagle3_heads import AUX_LAYERS, DRAFT_IDS, KEYS, make_head
from tests.support.tiny_models import NUM_LAYERS, VOCAB_SIZE, edit_config, edit_weights, random_target, word_tokenizer


@pytest.fixture
def target():
    return random_target()


@pytest.fixture
def folder(tmp_path, target):
    save_head(make_head(target), tmp_path)
    return tmp_path


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
    assert loaded.path == folder


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
    with pytest.raises(ValueError, match=r"use_aux_hidden_state = False in .*, of a head that reads one state"):
        load_eagle3(folder, target)


def test_absent_norm_before_residual_is_said_aloud(folder, target):
    edit_config(folder, drop=("norm_before_residual",))
    loaded = load_eagle3(folder, target)
    assert loaded.config.norm_before_residual is False
    assert ["norm_before_residual, and false is taken" in text for text in loaded.assumptions] == [True]


def test_contradicting_norms_are_refused(folder, target):
    edit_config(folder, norm_before_fc=True, fc_norm=True)
    with pytest.raises(ValueError, match="expected norm_before_fc or fc_norm, found both"):
        load_eagle3(folder, target)


def test_a_norm_the_config_denies_is_refused(folder, target):
    edit_weights(folder, put={"input_norm.weight": torch.ones(72)})
    with pytest.raises(CheckpointError, match=r"a tensor that nothing reads: input_norm\.weight"):
        load_eagle3(folder, target)


def test_an_embedding_equal_to_the_targets_is_shared(folder, target):
    edit_weights(folder, put={"embed_tokens.weight": target.embed_weight.clone()})
    assert set(load_eagle3(folder, target).state_dict_public()) == KEYS


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
    with pytest.raises(ValueError, match=r"different layers from 0 to 7, of a target of 7, .* found \[2, 18, 33\]"):
        load_eagle3(folder, target)


def test_another_vocabulary_size_is_refused(folder, target):
    data = json.loads((folder / "config.json").read_text())
    edit_config(folder, transformer_layer_config=data["transformer_layer_config"] | {"vocab_size": 999})
    with pytest.raises(ValueError, match=f"expected vocab_size {VOCAB_SIZE}, that of target tiny, found 999"):
        load_eagle3(folder, target)


def test_a_tokenizer_in_the_folder_must_be_the_targets(folder, target):
    word_tokenizer(swapped=True).save_pretrained(folder)
    with pytest.raises(ValueError, match="found 2 that do not: 7 is 'w8' in the drafter and 'w7' in the target"):
        load_eagle3(folder, target)


def test_a_misshapen_fc_is_refused(folder, target):
    edit_weights(folder, put={"fc.weight": torch.ones(24, 48)})
    with pytest.raises(CheckpointError, match=r"fc\.weight of shape \[24, 72\], found \[24, 48\]"):
        load_eagle3(folder, target)
