"""Assistants that read the cache of their target: refused, with the reason, wherever such a checkpoint is given."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from harness.config.drafter import DrafterKind, drafter_of
from harness.config.models import TargetConfig
from harness.config.schema import SettingsError
from harness.models.check_files import check_drafter_files, check_target_files
from harness.models.checkpoint import CheckpointError
from harness.models.checkpoint_kind import ASSISTANTS
from harness.models.draft_model import load_draft_model
from harness.models.target import load_target
from tests.support.any_models import NO_TOKENIZER
from tests.support.tiny_models import random_target

REASON = "found model_type gemma4(_unified)?_assistant: .* fails to build them, .* target's states, not its cache"
SIZES = {
    **{"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "vocab_size": 61, "head_dim": 8},
    **{"num_attention_heads": 2, "num_key_value_heads": 1, "global_head_dim": 8},
    "layer_types": ["sliding_attention", "full_attention"],
}
WITHOUT_OWN_INPUTS = {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}


def config_of(model_type: str) -> Any:
    kind = CONFIG_MAPPING[model_type]
    text_type = kind.sub_configs_defaults["text_config"].model_type
    more = WITHOUT_OWN_INPUTS if text_type == "gemma4_text" else {}
    return kind(text_config=CONFIG_MAPPING[text_type](**SIZES, **more), backbone_hidden_size=24)


@pytest.fixture(scope="module", params=ASSISTANTS)
def folder(request, tmp_path_factory):
    """A config.json as transformers writes it, and a tensor."""
    found = tmp_path_factory.mktemp(request.param)
    config_of(request.param).save_pretrained(found)
    save_file({"pre_projection.weight": torch.ones(16, 48)}, found / "model.safetensors", metadata={"format": "pt"})
    return found


@pytest.mark.parametrize("kind", ["draft_model", "mtp", "eagle3"])
def test_such_a_drafter_is_refused_before_a_run(folder, kind):
    """Would catch one that fails in its code, after the weights of its target were loaded."""
    with pytest.raises(SettingsError, match=REASON):
        check_drafter_files(drafter_of(DrafterKind(kind), path=str(folder)), TargetConfig())


def test_neither_does_it_run_as_a_target_or_load(folder):
    """Of a Hugging Face id the loader alone sees the files."""
    with pytest.raises(SettingsError, match=REASON):
        check_target_files(TargetConfig(path=str(folder)))
    with pytest.raises(CheckpointError, match=REASON):
        load_target(folder, tokenizer=NO_TOKENIZER, device="meta")
    with pytest.raises(CheckpointError, match=REASON):
        load_draft_model(folder, random_target())


@pytest.mark.parametrize("model_type", ASSISTANTS)
def test_the_installed_transformers_fails_to_build_them(model_type):
    """As the message says; once it builds them, the message is to be changed."""
    config = config_of(model_type)
    assert config.text_config.num_kv_shared_layers == config.text_config.num_hidden_layers
    with pytest.raises(ValueError, match="layer types producing a cache is different"):
        AutoModelForCausalLM.from_config(config)
