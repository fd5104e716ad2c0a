"""Targets and drafters of given sizes: named shapes, tokenizer, end of sequence, real weights beside random ones."""

from __future__ import annotations

import re
import shutil

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from harness.config.drafter import DrafterConfig, DrafterKind, drafter_of
from harness.config.models import Layers, Weights
from harness.drafters.registry import load_head
from harness.models import zoo as zoo_module
from harness.models.general.target import GeneralTarget
from harness.models.random_head import DRAFT_VOCAB_SIZE, random_eagle, random_eagle3, random_mtp
from harness.models.random_target import architecture, random_target
from harness.models.shape import read_shape, shape_names
from harness.models.target import load_target
from harness.records.runs import CELLS
from harness.runner.whole_run import run
from tests.support.small_run import SMALL
from tests.support.tiny_models import random_target as target_in_memory
from tests.support.tiny_models import save_target_folder, word_tokenizer
from tests.support.tiny_shapes import EOS, GLM, shape_folder

MODEL_KINDS = [DrafterKind.eagle, DrafterKind.eagle3, DrafterKind.mtp, DrafterKind.draft_model]
NUM_PARAMETERS = {
    "deepseek_v3": 671_026_404_352,
    "gemma3_12b": 11_766_034_176,
    "glm47_flash": 29_943_390_976,
    "gpt_oss_20b": 20_914_757_184,
    "llama32_1b": 1_235_814_400,
    "llama3_70b": 70_553_706_496,
    "llama3_8b": 8_030_261_248,
    "mistral_7b": 7_248_023_552,
    "qwen2_5_7b": 7_615_616_512,
    "qwen3_06b": 596_049_920,
    "qwen3_30b_a3b": 30_532_122_624,
    "qwen3_next_80b_a3b": 79_674_391_296,
    "qwen3_8b": 8_190_735_360,
    "smollm2": 134_515_008,
}
"""Without the MTP layer; they round to what the model cards say, and a slip in any size changes them."""
READ_ELSEWHERE = {
    "rope_theta",
    "partial_rotary_factor",
    "first_k_dense_replace",
    "topk_method",
    "num_nextn_predict_layers",
    "full_attention_interval",
    *("rope_scaling", "rope_local_base_freq", "sliding_window_pattern", "head_dim", "num_experts", "max_window_layers"),
}
"""Fields of published files that a configuration class keeps without declaring them."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return shape_folder(tmp_path_factory.mktemp("shape") / "tiny")


@pytest.fixture(scope="module")
def target(folder):
    return random_target(folder, dtype=torch.float32, name="tiny")


@pytest.fixture(scope="module")
def zoo():
    return load_target(None, dtype=torch.float32)


def drafter(kind: DrafterKind, **settings) -> DrafterConfig:
    return drafter_of(kind, weights=Weights.random, **settings)


@pytest.mark.parametrize("name", shape_names())
def test_a_named_shape_has_the_parameters_of_the_public_model(name):
    config = architecture(None, name).config
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == NUM_PARAMETERS[name]


@pytest.mark.parametrize("name", shape_names())
def test_a_named_shape_states_its_source_its_end_and_no_unknown_field(name):
    shape = read_shape(name)
    assert re.fullmatch(r"https://huggingface\.co/[\w.-]+/[\w.-]+/blob/main/config\.json", shape.source)
    declared = set(type(AutoConfig.for_model(shape.config["model_type"]))().to_dict())
    assert set(shape.config) <= declared | READ_ELSEWHERE
    assert {"eos_token_id", "dtype", "tie_word_embeddings"} <= set(shape.config)


def test_a_shape_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(ValueError, match=r"expected one of .*llama3_8b.*found 'llama9'"):
        read_shape("llama9")


def test_a_model_type_that_does_not_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"config\.json: expected a model_type that the installed .*, found 't5'"):
        random_target(shape_folder(tmp_path, model_type="t5"))


def test_the_same_sizes_give_the_same_model_and_others_another(folder, target, tmp_path):
    again = random_target(folder, dtype=torch.float32)
    for name, weight in target.causal_lm.state_dict().items():
        assert torch.equal(weight, again.causal_lm.state_dict()[name])
    other = random_target(shape_folder(tmp_path, rope_theta=10000.0))
    assert again.random_fingerprint == target.random_fingerprint != other.random_fingerprint


def test_the_dtype_is_that_of_the_configuration_or_bfloat16(folder, tmp_path):
    assert random_target(folder).dtype is torch.bfloat16
    assert random_target(shape_folder(tmp_path / "a", dtype="float16")).dtype is torch.float16
    assert random_target(shape_folder(tmp_path / "b", dtype=None)).dtype is torch.bfloat16


def test_random_models_need_the_zoos_tokenizer_and_not_its_weights(tmp_path, monkeypatch, folder):
    """Would catch a check for weights on the way of a run that draws its own, and a cell whose id follows from weights
    that it does not read."""
    target = ["target.weights=random", f"target.path={folder}", "target.name=tiny"]
    arguments = [*target, "drafter=eagle3", "drafter.weights=random", "drafting.num_speculative_tokens=2"]
    run(*arguments, *SMALL, f"output.folder={tmp_path / 'with'}")
    without = shutil.copytree(zoo_module.ZOO, tmp_path / "zoo", ignore=shutil.ignore_patterns("*.packed"))
    monkeypatch.setattr(zoo_module, "ZOO", without)
    with pytest.raises(ValueError, match=r"expected the built-in target with model\.safetensors\.packed, found none"):
        load_target(None)
    run(*arguments, *SMALL, f"output.folder={tmp_path / 'without'}")
    with_weights, without_weights = ({*(tmp_path / name / CELLS).iterdir()} for name in ("with", "without"))
    assert {path.name for path in with_weights} == {path.name for path in without_weights}


@pytest.mark.parametrize("shape", [{}, GLM])
def test_weights_are_made_where_fused_layers_read_them(tmp_path, shape):
    """Would catch a second copy of every joint weight while a model is loaded, and the holes that it leaves."""
    target = random_target(shape_folder(tmp_path, **shape))
    weights = dict(target.causal_lm.named_parameters())
    places, values = (
        {name: call(weight) for name, weight in weights.items()} for call in (Tensor.data_ptr, Tensor.clone)
    )
    assert target.fuse() is None
    for name, weight in target.causal_lm.named_parameters():
        assert weight.data_ptr() == places[name] and torch.equal(weight, values[name])
    joint = [weight.untyped_storage().nbytes() > weight.nbytes for weight in weights.values()]
    assert sum(joint) >= 2 * target.num_layers


def test_without_a_tokenizer_the_zoos_stands_in_and_its_end_of_sequence_ends_nothing(target, zoo):
    assert target.tokenizer_stands_in and target.tokenizer.get_vocab() == zoo.tokenizer.get_vocab()
    assert target.eos_token_ids == {EOS} and not zoo.eos_token_ids & target.eos_token_ids


def test_a_tokenizer_beside_the_sizes_is_taken_with_its_end(tmp_path):
    word_tokenizer().save_pretrained(shape_folder(tmp_path))
    target = random_target(tmp_path)
    assert not target.tokenizer_stands_in and len(target.tokenizer) == len(word_tokenizer())
    assert target.eos_token_ids == {EOS, 5}


def test_a_vocabulary_too_small_for_the_stand_in_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"expected vocab_size 6144 or more.*found 61; put the tokenizer"):
        random_target(shape_folder(tmp_path, vocab_size=61))


@pytest.mark.parametrize("kind", MODEL_KINDS, ids=lambda kind: kind.value)
def test_a_random_drafter_for_the_zoos_own_target_has_the_size_of_the_zoos_drafter(zoo, kind):
    drawn, loaded = load_head(drafter(kind), zoo), load_head(drafter_of(kind), zoo)
    assert drawn.head.num_parameters == loaded.head.num_parameters
    assert drawn.head.vocab_size == loaded.head.vocab_size
    assert drawn.random_fingerprint is not None and loaded.random_fingerprint is None and drawn.folder is None


@pytest.mark.parametrize("kind", MODEL_KINDS, ids=lambda kind: kind.value)
def test_a_drafter_from_a_checkpoint_serves_a_random_target(kind):
    target = random_target(dtype=torch.float32)
    loaded = load_head(drafter_of(kind), target)
    assert target.random_fingerprint is not None and loaded.random_fingerprint is None


def test_a_stand_in_for_a_tokenizer_is_not_compared_with_a_draft_models(tmp_path):
    draft_model = target_in_memory(vocab_size=6200).causal_lm
    loaded = load_head(
        drafter_of(DrafterKind.draft_model, path=str(save_target_folder(tmp_path / "draft", draft_model))),
        random_target(shape_folder(tmp_path / "target"), dtype=torch.float32),
    )
    assert loaded.head.vocab_size == 6200


def test_an_eagle_head_is_one_llama_layer_of_the_targets_widths_also_for_qwen3(tmp_path):
    sizes = {}
    for model_type in ("llama", "qwen3"):
        target = random_target(shape_folder(tmp_path / model_type, model_type=model_type))
        sizes[model_type] = {name: list(weight.shape) for name, weight in random_eagle(target).state_dict().items()}
    assert sizes["llama"] == sizes["qwen3"]
    assert sizes["llama"]["fc.weight"] == [64, 128] and "fc.bias" not in sizes["llama"]


def test_an_eagle3_head_has_the_public_draft_vocabulary_and_layers_by_rule(tmp_path):
    target = random_target(shape_folder(tmp_path, vocab_size=33_000, num_hidden_layers=8))
    head = random_eagle3(target)
    assert head.vocab_size == DRAFT_VOCAB_SIZE and list(head.lm_head.weight.shape) == [32_000, 64]
    assert head.aux_layers == (2, 4, 5)
    assert head.draft_to_target is not None and int(head.draft_to_target.max()) < 33_000
    assert int(head.t2d.sum()) == 32_000


def test_an_mtp_layer_has_an_output_matrix_unless_the_target_ties_its_own(tmp_path, target, zoo):
    assert random_mtp(target).config.own_head and not random_mtp(zoo).config.own_head
    without = random_target(shape_folder(tmp_path, num_nextn_predict_layers=None), name="tiny")
    with pytest.raises(ValueError, match=r"target tiny: expected num_nextn_predict_layers 1 or more .* found 0"):
        random_mtp(without)


def test_a_draft_model_of_the_targets_own_sizes_is_another_model(folder, target):
    drawn = load_head(drafter(DrafterKind.draft_model, path=str(folder)), target)
    assert drawn.head.num_parameters == target.num_parameters
    assert not torch.equal(drawn.head.embed_weight, target.embed_weight)
    assert drawn.random_fingerprint != target.random_fingerprint


def test_a_draft_model_with_another_vocabulary_is_refused(target):
    with pytest.raises(ValueError, match=r"qwen3_06b\.json: expected vocab_size 6200, .* found 151936"):
        load_head(drafter(DrafterKind.draft_model, shape="qwen3_06b"), target)


def test_random_weights_are_the_same_whoever_computes_the_layers(tmp_path):
    """Would catch times of two paths that are of other weights."""
    folder = shape_folder(tmp_path)
    own, general = (
        random_target(folder, dtype=torch.float32, layers=each) for each in (Layers.own, Layers.transformers)
    )
    assert isinstance(general, GeneralTarget) and not isinstance(own, GeneralTarget)
    found, expected = (model.causal_lm.state_dict() for model in (general, own))
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)
