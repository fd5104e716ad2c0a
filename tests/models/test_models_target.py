"""The target: its own forward equals that of transformers, and loading reports what does not fit."""

from __future__ import annotations

import json
import sys
import warnings

import pytest
import torch
from safetensors.torch import load_file

from harness.config.models import Layers
from harness.models.accounting import Accepted
from harness.models.checkpoint import CheckpointError
from harness.models.target import TargetModel, load_target
from tests.support.tiny_models import (
    LLAMA3_ROPE,
    NUM_LAYERS,
    TOLERANCE,
    VOCAB_SIZE,
    edit_config,
    edit_weights,
    positions_from,
    random_causal_lm,
    random_target,
    random_tokens,
    save_target_folder,
)

YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 16}
# of random_causal_lm, and fields that change
KINDS = {
    "llama": ("llama", {}),
    "llama3_rope": ("llama3_rope", {}),
    "llama_tied": ("llama_tied", {}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "qwen3": ("qwen3", {}),
    "qwen3 tied": ("qwen3", {"tie_word_embeddings": True}),
    "qwen3 with yarn": ("qwen3", {"rope_parameters": YARN}),
}
CONFIGURATION_CODE = """
import pathlib
from transformers import LlamaConfig
pathlib.Path({mark!r}).touch()
class OwnConfig(LlamaConfig):
    pass
"""


@pytest.fixture
def folder(tmp_path):
    return save_target_folder(tmp_path, random_causal_lm())


@pytest.mark.parametrize(("kind", "changes"), KINDS.values(), ids=KINDS)
def test_forward_equals_transformers(kind, changes):
    tokens = random_tokens(2, 11)
    expected = random_causal_lm(kind, **changes)(tokens)
    target = random_target(kind, **changes)
    output = target.forward(tokens, positions_from([0, 0], 11), None)
    torch.testing.assert_close(target.logits(output.hidden), expected.logits, **TOLERANCE)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_aux_states_are_those_entering_the_layers(kind):
    tokens = random_tokens(2, 7)
    causal_lm = random_causal_lm(kind)
    entering = {}
    for index, layer in enumerate(causal_lm.model.layers):
        layer.register_forward_pre_hook(lambda _, args, index=index: entering.__setitem__(index, args[0]))
    causal_lm.model.norm.register_forward_pre_hook(lambda _, args: entering.__setitem__(NUM_LAYERS, args[0]))
    causal_lm(tokens)
    # any order may be asked for, and the number of layers is the state before the final norm
    asked = (3, 0, NUM_LAYERS)
    output = random_target(kind).forward(tokens, positions_from([0, 0], 7), None, asked)
    assert len(output.aux) == 3
    for index, state in zip(asked, output.aux, strict=True):
        torch.testing.assert_close(state, entering[index], **TOLERANCE)


@pytest.mark.parametrize(("kind", "changes"), KINDS.values(), ids=KINDS)
def test_a_saved_target_loads_silently_with_the_same_weights(tmp_path, kind, changes):
    causal_lm = random_causal_lm(kind, **changes)
    save_target_folder(tmp_path, causal_lm)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        target = load_target(tmp_path, name="tiny")
    tokens, positions = random_tokens(1, 9), positions_from([0], 9)
    logits = target.logits(target.forward(tokens, positions, None).hidden)
    torch.testing.assert_close(logits, causal_lm(tokens).logits, **TOLERANCE)
    assert target.num_parameters == sum(parameter.numel() for parameter in causal_lm.parameters())
    assert (target.vocab_size, target.num_layers, target.hidden_size) == (VOCAB_SIZE, NUM_LAYERS, 24)
    assert (target.name, target.path, target.dtype, target.device.type) == ("tiny", tmp_path, torch.float32, "cpu")
    assert not any(parameter.requires_grad for parameter in target.causal_lm.parameters())


def test_a_config_of_an_older_file_is_read(tmp_path):
    """As published ones are: the base and the scaling of RoPE in two fields, the dtype under its former name."""
    causal_lm = random_causal_lm("llama3_rope")
    save_target_folder(tmp_path, causal_lm)
    scaling = {name: value for name, value in LLAMA3_ROPE.items() if name != "rope_theta"}
    older = {"rope_theta": LLAMA3_ROPE["rope_theta"], "rope_scaling": scaling, "torch_dtype": "float32"}
    edit_config(tmp_path, drop=("rope_parameters", "dtype"), **older)
    target, tokens = load_target(tmp_path), random_tokens(1, 11)
    found = target.logits(target.forward(tokens, positions_from([0], 11), None).hidden)
    torch.testing.assert_close(found, causal_lm(tokens).logits, **TOLERANCE)


def test_code_in_a_checkpoint_runs_only_where_asked_for(tmp_path, folder, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr("sys.path", [*sys.path])
    mark = tmp_path / "mark"
    (folder / "configuration_own.py").write_text(CONFIGURATION_CODE.format(mark=str(mark)))
    edit_config(folder, auto_map={"AutoConfig": "configuration_own.OwnConfig"})
    with pytest.raises(CheckpointError, match=r"code of its own: .* runs it"):
        load_target(folder)
    assert load_target(folder, accepted=Accepted("target", ("auto_map",))).num_layers == NUM_LAYERS
    assert not mark.exists()
    edit_config(folder, model_type="of_its_own")
    with pytest.raises(ValueError, match="trust_remote_code"):
        load_target(folder)
    assert not mark.exists()
    edit_config(folder, model_type="llama")
    assert load_target(folder, trust_remote_code=True).num_layers == NUM_LAYERS and mark.exists()


def test_dtype_is_the_files_unless_given(tmp_path):
    save_target_folder(tmp_path, random_causal_lm().to(torch.bfloat16))
    assert load_target(tmp_path).dtype == torch.bfloat16
    target = load_target(tmp_path, dtype=torch.float32)
    assert {parameter.dtype for parameter in target.causal_lm.parameters()} == {torch.float32}


def test_rotary_table_keeps_its_precision(tmp_path):
    causal_lm = random_causal_lm()
    table = causal_lm.model.rotary_emb.inv_freq.clone()
    save_target_folder(tmp_path, causal_lm.to(torch.bfloat16))
    assert torch.equal(load_target(tmp_path, dtype=torch.bfloat16).causal_lm.model.rotary_emb.inv_freq, table)


def test_eos_tokens_are_those_of_the_files_and_the_tokenizer(folder):
    assert load_target(folder).eos_token_ids == {3, 5}
    assert not any("eos_token_id" in text for text in load_target(folder).assumptions)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 8]}))
    target = load_target(folder)
    assert target.eos_token_ids == {5, 7, 8}
    # 3, which config.json names, ends nothing
    (told,) = [text for text in target.assumptions if "eos_token_id" in text]
    assert told.startswith("config.json names eos_token_id = [3], and generation_config.json [7, 8], which counts")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 3]}))
    assert not any("eos_token_id" in text for text in load_target(folder).assumptions)
    (folder / "generation_config.json").unlink()
    edit_config(folder, drop=("eos_token_id",))
    # not 2, which the configuration class of Llama would fill in
    assert load_target(folder).eos_token_ids == {5}


@pytest.mark.parametrize("count", [0, 1])
def test_mtp_layers_are_no_layers_of_the_target(folder, count):
    edit_weights(folder, put={f"model.layers.{NUM_LAYERS}.enorm.weight": torch.ones(24)})
    edit_config(folder, num_nextn_predict_layers=count)
    target = load_target(folder)
    assert target.num_layers == NUM_LAYERS and target.assumptions == ()


def test_a_tied_output_matrix_of_other_values_is_refused(tmp_path):
    """Would catch logits by the embedding where a file ties them and holds two: transformers then takes both."""
    save_target_folder(tmp_path, random_causal_lm("llama_tied"))
    embedding = load_file(tmp_path / "model.safetensors")["model.embed_tokens.weight"]
    edit_weights(tmp_path, put={"lm_head.weight": embedding.clone()})
    assert load_target(tmp_path).assumptions == ()
    edit_weights(tmp_path, put={"lm_head.weight": embedding + 1})
    with pytest.raises(CheckpointError, match=r"expected lm_head\.weight to be its embedding, .* found another one"):
        load_target(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": NUM_LAYERS - 1},
        {"num_hidden_layers": 0},
        {"hidden_size": 0},
        {"vocab_size": "x"},
        {"hidden_act": "x"},
        {"rms_norm_eps": "x"},
        {"rope_parameters": {"rope_type": "default", "rope_theta": "x"}},
    ],
    ids=lambda changes: ",".join(f"{name}={value}" for name, value in changes.items()),
)
def test_a_configuration_that_is_not_that_of_the_weights_is_refused_in_one_line(folder, changes):
    """Would catch a model that runs with fewer layers than it has, and an error of transformers that names no file."""
    edit_config(folder, **changes)
    with pytest.raises(CheckpointError) as error:
        load_target(folder)
    assert str(folder) in str(error.value) and "\n" not in str(error.value)


def test_a_weight_of_another_shape_is_refused(folder):
    edit_config(folder, intermediate_size=41)
    with pytest.raises(CheckpointError, match=r"mlp\.gate_proj\.weight of shape \[41, 24\], found \[40, 24\]"):
        load_target(folder)


def test_a_folder_without_tokenizer_is_refused(folder):
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(CheckpointError, match="expected a tokenizer"):
        load_target(folder)


def test_a_folder_without_config_is_refused(folder):
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json: expected this file"):
        load_target(folder)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            {"model_type": "t5"},
            "a model_type that the installed transformers has a causal language model of, found 't5'",
        ),
        ({"quantization_config": {"quant_method": "modelopt"}}, "found 'modelopt'; dequantize the checkpoint"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "rope_type 'dynamic'"),
    ],
    ids=["no causal language model", "quantized", "dynamic RoPE"],
)
def test_models_that_do_not_run_are_refused(folder, fields, reason):
    edit_config(folder, **fields)
    with pytest.raises(ValueError, match=reason):
        load_target(folder)


def test_sliding_attention_is_refused_with_the_setting_that_computes_it(tmp_path):
    """Would catch a reader who vouches for a window, and gets other logits past it."""
    causal_lm = random_causal_lm("qwen3", use_sliding_window=True, sliding_window=8, max_window_layers=2)
    folder, tokens = save_target_folder(tmp_path, causal_lm), random_tokens(2, 24)
    named = r"'sliding_attention'.*, which would change what the layers attend to.*; use target\.layers=transformers, "
    with pytest.raises(ValueError, match=named):
        load_target(folder)
    target = load_target(folder, layers=Layers.transformers)
    states = target.forward(tokens, positions_from([0, 0], 24), None).hidden
    torch.testing.assert_close(target.logits(states), causal_lm(tokens).logits, **TOLERANCE)


def test_transformers_own_forward_still_works_after_wrapping():
    """Training code may call the wrapped model itself."""
    causal_lm, tokens = random_causal_lm("qwen3"), random_tokens(2, 6)
    expected = causal_lm(tokens).logits
    TargetModel(causal_lm, None)
    torch.testing.assert_close(causal_lm(tokens).logits, expected, **TOLERANCE)
