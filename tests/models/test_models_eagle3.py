"""EAGLE-3 heads compute what the layer written out plainly does, with every flag, embedding and vocabulary."""

from __future__ import annotations

import warnings

import pytest
import torch
from safetensors.torch import load_file

from harness.models.aux_layer_ids import default_aux_layers
from harness.models.eagle3 import Eagle3Config, Eagle3Head, load_eagle3
from harness.models.head import save_head
from tests.support.eagle3_heads import AUX_LAYERS, KEYS, assert_equals_plain, make_head, run
from tests.support.tiny_models import VOCAB_SIZE, edit_weights, random_target

OWN_SIZES = {"intermediate_size": 52, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 10}


@pytest.fixture
def target():
    return random_target()


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


def test_default_auxiliary_layers():
    assert default_aux_layers(36) == (2, 18, 33) and default_aux_layers(10) == (2, 5, 7)


def test_an_embedding_of_its_own_is_used(tmp_path, target):
    head = make_head(target, own_embedding=True)
    save_head(head, tmp_path)
    assert set(load_file(tmp_path / "model.safetensors")) == KEYS | {"embed_tokens.weight"}
    assert_equals_plain(load_eagle3(tmp_path, target), head.embed_tokens.weight)


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
