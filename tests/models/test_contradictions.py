"""A file whose places contradict each other is refused, and null is no place at all."""

from __future__ import annotations

import json

import pytest

from harness.models.accounting import OF_TARGET, model_account
from harness.models.checkpoint import CheckpointError
from harness.models.contradictions import SAME
from harness.models.eagle3 import load_eagle3
from harness.models.head import save_head
from harness.models.target import load_target, read_config
from tests.support.filed_models import NOWHERE, account
from tests.support.public_configs import HEADS, TARGETS
from tests.support.tiny_heads import make_head
from tests.support.tiny_models import edit_config, random_causal_lm, random_target, save_target_folder

LLAMA, GLM = TARGETS["TinyLlama"][0], TARGETS["GLM-4.7-Flash"][0]
EAGLE3, DFLASH = HEADS["EAGLE-3 of SpecForge"][1], HEADS["DFlash of z-lab"][1]
LINEAR = {"rope_type": "linear", "factor": 2.0}
CONTRADICTIONS = {
    "theta in rope_parameters": (
        ("target", LLAMA | {"rope_theta": 500000, "rope_parameters": {"rope_theta": 10000.0}}),
        "rope_theta = 500000 in config.json, beside rope_parameters.rope_theta = 10000.0; take out the one that is",
    ),
    "theta in rope_scaling": (
        ("target", LLAMA | {"rope_theta": 500000, "rope_scaling": LINEAR | {"rope_theta": 10000.0}}),
        "rope_theta = 500000 in config.json, beside rope_scaling.rope_theta = 10000.0",
    ),
    "two scalings": (
        ("target", LLAMA | {"rope_scaling": LINEAR, "rope_parameters": {"rope_type": "default"}}),
        "rope_scaling = .* in config.json, beside rope_parameters = ",
    ),
    "a theta that a scaling without one would replace": (
        (
            "target",
            {name: value for name, value in LLAMA.items() if name != "rope_theta"}
            | {"rope_scaling": LINEAR, "rope_parameters": LINEAR | {"rope_theta": 5e5}},
        ),
        "rope_scaling = .* in config.json, beside rope_parameters = ",
    ),
    "two types of RoPE": (
        ("target", LLAMA | {"rope_scaling": LINEAR | {"type": "yarn"}}),
        "rope_scaling.rope_type = 'linear' in config.json, beside rope_scaling.type = 'yarn'",
    ),
    "two counts of experts": (
        ("target", GLM | {"num_local_experts": 8}),
        "n_routed_experts = 64 in config.json, beside num_local_experts = 8",
    ),
    "dense layers": (
        ("target", GLM | {"mlp_layer_types": ["dense"] * 47}),
        "first_k_dense_replace = 1 in config.json, beside mlp_layer_types = ",
    ),
    "a norm before fc": (
        ("eagle3", EAGLE3 | {"norm_before_fc": False, "eagle_config": {"norm_before_fc": True}}),
        "norm_before_fc = False in config.json, beside eagle_config.norm_before_fc = True",
    ),
    "a kind and an algorithm": (
        ("eagle3", EAGLE3 | {"speculators_model_type": "eagle3", "speculators_config": {"algorithm": "mtp"}}),
        "speculators_model_type = 'eagle3' in config.json, beside speculators_config.algorithm = 'mtp'",
    ),
    "two sizes of blocks": (
        ("dflash", DFLASH | {"dflash_config": DFLASH["dflash_config"] | {"block_size": 4}}),
        "block_size = 16 in config.json, beside dflash_config.block_size = 4",
    ),
}


@pytest.mark.parametrize(("given", "message"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_places_that_contradict_each_other_are_refused(given, message):
    """Would catch one of them that is taken in silence: another rotation, another norm than other readers compute."""
    with pytest.raises(CheckpointError, match=message):
        account(*given)


@pytest.mark.parametrize("names", SAME, ids=lambda names: names[0])
def test_every_pair_of_places_has_its_case(names):
    assert any(f"{names[0]} = " in message for _, message in CONTRADICTIONS.values())


def test_places_that_say_the_same_thing_are_one():
    same = LINEAR | {"rope_theta": 10000}
    files = [
        {"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": same},
        {"rope_parameters": same},
        {"rope_theta": 10000.0, "rope_parameters": {"rope_type": "default"}, "rope_scaling": {}},
        {"rope_theta": None, "rope_parameters": same, "rope_scaling": None},
    ]
    for fields in files:
        assert account("target", LLAMA | fields).assumptions == ()
    assert account("target", GLM | {"num_local_experts": 64}).assumptions == ()


def test_null_is_absent_for_the_tokenizer_too(tmp_path):
    """Would catch a configuration that is read a second time, with its nulls, for the tokenizer."""
    folder = tmp_path / "target"
    save_target_folder(folder, random_causal_lm())
    edit_config(folder, attention_bias=None, rms_norm_eps=None, use_cache=None)
    assert load_target(folder).config.attention_bias is False


def test_null_is_absent_wherever_a_field_may_stand(tmp_path):
    """Would catch a null that hides the place that says it, and one that is taken for another kind of head."""
    head = make_head("eagle3", random_target(), norm_before_fc=True)
    fields = head.config.to_dict()
    assert (head.config.norm_before_fc, fields["norm_before_fc"]) == (True, True)
    save_target_folder(tmp_path / "target", random_causal_lm())
    target = load_target(tmp_path / "target")
    save_head(head, tmp_path / "head")
    path = tmp_path / "head" / "config.json"
    layer = fields["transformer_layer_config"] | {"draft_vocab_size": fields["draft_vocab_size"]}
    nested = {"norm_before_fc": True, "use_aux_hidden_state": None}
    aux = {"eagle_aux_hidden_state_layer_ids": fields["eagle_aux_hidden_state_layer_ids"]}
    nulls = {"norm_before_fc": None, "speculators_model_type": None, "fc_norm": None, "target_hidden_size": None}
    path.write_text(json.dumps(layer | nulls | aux | {"eagle_config": nested}))
    assert load_eagle3(tmp_path / "head", target).config.norm_before_fc


def test_a_null_that_is_a_value_stays_one():
    """Queries of no low rank, and no window: what is absent has a default there."""
    plain = model_account(NOWHERE, GLM | {"q_lora_rank": None}, OF_TARGET)
    assert plain.fields["q_lora_rank"] is None and plain.settled().assumptions == ()
    absent = {name: value for name, value in GLM.items() if name != "q_lora_rank"}
    assert "does not state q_lora_rank, and 768 is taken" in account("target", absent).assumptions[0]


def test_null_means_what_transformers_takes_it_for_where_its_code_runs(tmp_path):
    """Would catch the cap that its class has by default, in a model whose file says that there is none."""
    fields = {"model_type": "gemma2", "final_logit_softcapping": None, "hidden_size": 64, "num_hidden_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    assert read_config(tmp_path, False, OF_TARGET).config.final_logit_softcapping is None
