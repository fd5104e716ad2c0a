"""Fields of a wrong form, contradicting places and tensors that no loader reads are refused before a run."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from harness.config.drafter import drafter_of
from harness.config.models import TargetConfig
from harness.config.schema import SettingsError
from harness.models.accounting import OF_TARGET, model_account
from harness.models.assumptions import assumed_of_drafter, assumed_of_target
from harness.models.check_files import check_drafter_files, check_target_files
from harness.models.checkpoint import INDEX, CheckpointError
from harness.models.contradictions import SAME
from harness.models.decoder_layer import config_class
from harness.models.eagle3 import load_eagle3
from harness.models.eagle3_config import Eagle3Config
from harness.models.field_forms import ACTIVATIONS, FLAG, FORMS
from harness.models.head import save_head
from harness.models.known_fields import model_layout, tokenizer_layout
from harness.models.known_head_fields import HEAD_LAYOUTS
from harness.models.model_types import MODEL_TYPES
from harness.models.target import load_target, read_config
from tests.support.filed_models import NOWHERE, ROLES, account, file_models, folder_of, load, put
from tests.support.public_configs import HEADS, TARGETS
from tests.support.tiny_heads import LOADERS, make_head
from tests.support.tiny_models import edit_config, random_causal_lm, random_target, save_target_folder


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A target and a head of every kind that fits it, as folders by name."""
    root = tmp_path_factory.mktemp("models")
    file_models(root)
    return root


@pytest.fixture
def copied(models, tmp_path):
    """A copy of one of them, by name."""
    return lambda name: shutil.copytree(models / name, tmp_path / name)


def flags_of(layout):
    return [name for name in layout if FORMS.get(name) is FLAG]


def fields_of(models, role):
    return json.loads((models / folder_of(role) / "config.json").read_text())


@pytest.mark.parametrize("wrong", ["false", "no", 0])
@pytest.mark.parametrize("role", ROLES)
def test_a_flag_is_true_or_false(models, role, wrong):
    """Would catch "false", which counts as true: a head or a layer that computes the opposite of what its file says."""
    data = fields_of(models, role)
    places: list = [(data, "", model_layout("llama", runs_code=False))]
    if role not in ("target", "draft model"):
        kind = role.split()[0]
        places = [(data, "", HEAD_LAYOUTS[kind](data))]
        for within in ("transformer_layer_config", "eagle_config", "dflash_config"):
            known = places[0][2].get(within)
            if known is not None:
                inner = data.setdefault(within, {})
                places.append((inner, f"{within}.", known.layout(inner)))
    for place, prefix, layout in places:
        for name in flags_of(layout):
            changed = json.loads(json.dumps(data))
            (changed if place is data else changed[prefix[:-1]])[name] = wrong
            with pytest.raises(
                CheckpointError, match=rf"{prefix}{name} = {wrong!r} in config\.json, where true or false"
            ):
                account(role, changed)
    assert all(flags_of(layout) for _, prefix, layout in places if prefix != "dflash_config.")


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_what_a_configuration_takes_for_true_or_false_is_a_flag(model_type):
    """Would catch a field that is used, and whose text "false" would count as true."""
    defaults, layout = config_class(model_type)().to_dict(), model_layout(model_type, runs_code=False)
    used = [name for name, known in layout.items() if not known.note and type(defaults.get(name)) is bool]
    assert used and set(used) <= {*flags_of(layout)}
    own = [name for name, kind in Eagle3Config.__annotations__.items() if kind == "bool"]
    assert own and {*own} <= {*flags_of(HEAD_LAYOUTS["eagle3"]({}))}


@pytest.mark.parametrize("name", flags_of(tokenizer_layout(runs_code=False)))
def test_a_flag_of_a_tokenizer_is_true_or_false(copied, name):
    folder = copied("target")
    put(folder, "tokenizer_config.json", None, name, "false")
    with pytest.raises(CheckpointError, match=rf"{name} = 'false' in tokenizer_config\.json, where true or false"):
        load("target", folder, name)


def test_an_object_is_an_object(models):
    """Would catch a list in the place of an object, which counts as read."""
    for role in ROLES:
        data = fields_of(models, role)
        layout = (
            model_layout("llama", runs_code=False)
            if folder_of(role) == "target"
            else HEAD_LAYOUTS[role.split()[0]](data)
        )
        for name in [name for name, known in layout.items() if known.layout is not None]:
            with pytest.raises(
                CheckpointError, match=rf"{name} = \['x'\] in config\.json, where an object is expected"
            ):
                account(role, data | {name: ["x"]})


def test_activations_are_those_that_transformers_knows():
    """Would catch one that only a worker finds."""
    from transformers.activations import ACT2CLS

    assert {*ACTIVATIONS} == {*ACT2CLS}


WRONG = ("x", -1, [1])


@pytest.mark.parametrize("role", ["target", "eagle", "eagle3", "dflash", "dflash original"])
def test_what_a_loader_refuses_is_refused_before_a_worker_starts(copied, role):
    """Every field that a file states, with values that it cannot have; a worker would take seconds to find each."""
    folder, target_folder = copied(folder_of(role)), copied("target") if role != "target" else None
    target, path = random_target(), folder / "config.json"
    data = json.loads(path.read_text())
    late = []
    for name, wrong in ((name, wrong) for name, value in data.items() for wrong in WRONG if wrong != value):
        path.write_text(json.dumps(data | {name: wrong}))
        try:
            if target_folder is None:
                check_target_files(TargetConfig(path=str(folder)))
                assumed_of_target(TargetConfig(path=str(folder)))
            else:
                drafter = drafter_of(role.split()[0], path=str(folder))
                check_drafter_files(drafter, TargetConfig(path=str(target_folder)))
                assumed_of_drafter(drafter, TargetConfig(path=str(target_folder)))
        except (SettingsError, CheckpointError):
            continue
        try:
            load_target(folder) if target_folder is None else LOADERS[role.split()[0]](folder, target)
        except ValueError:
            late.append((name, wrong))
    assert not late


MARKOV = "markov_head.markov_w1.weight"


@pytest.mark.parametrize("role", ["eagle", "target"])
def test_a_file_of_tensors_that_is_not_read_is_refused_until_the_user_vouches_for_it(copied, role):
    """Would catch tensors beside model.safetensors, which some readers load and this one forgets."""
    folder = copied(role)
    save_file({"extra.0": torch.ones(1), "rotary_emb.inv_freq": torch.ones(1)}, folder / "extra.safetensors")
    with pytest.raises(CheckpointError) as refused:
        load(role, folder)
    told = "extra.safetensors, which lies beside model.safetensors, with extra.0"
    assert f"found {told}; choose" in str(refused.value)
    assert any(text.startswith(f"{told}: left out") for text in load(role, folder, "extra.safetensors").assumptions)
    # the same weights in the layout of their vendor
    (folder / "extra.safetensors").rename(folder / "consolidated.safetensors")
    assert not [text for text in load(role, folder).assumptions if "safetensors" in text]


def test_a_file_of_tensors_that_is_not_read_tells_what_the_head_is(copied):
    folder = copied("eagle")
    save_file({MARKOV: torch.ones(1)}, folder / "extra.safetensors")
    with pytest.raises(CheckpointError, match="of a DSpark head; run it with drafter=dspark"):
        load("eagle", folder, "extra.safetensors", MARKOV)
    (folder / "extra.safetensors").write_bytes(b"cut")
    with pytest.raises(
        CheckpointError, match=r"extra\.safetensors, which lies beside model\.safetensors, and which is"
    ):
        load("eagle", folder)


def test_a_copy_of_the_weights_beside_an_index_is_refused(copied):
    """Would catch two sets of weights of which one is taken: readers differ in which."""
    folder = copied("eagle")
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors, folder / "model-1.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(tensors, "model-1.safetensors")}))
    with pytest.raises(
        CheckpointError, match=r"model\.safetensors, which model\.safetensors\.index\.json does not name"
    ):
        load("eagle", folder)


def test_a_tensor_that_the_index_does_not_name_counts_as_its_file_has_it(copied):
    """Would catch a file that was extended by hand: its output matrix is left out, and the target's is taken."""
    folder = copied("eagle3")
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    listed = dict.fromkeys(tensors.keys() - {"lm_head.weight"}, "model-1.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": listed}))
    assert load("eagle3", folder).has_own_output
    save_file(tensors | {"extra": torch.ones(1)}, folder / "model-1.safetensors")
    with pytest.raises(CheckpointError, match="found a tensor that nothing reads: extra; choose"):
        load("eagle3", folder)


def test_a_file_that_is_not_read_is_refused_where_the_code_of_transformers_runs_too(tmp_path):
    for name in ("model", "extra"):
        save_file({name: torch.ones(1)}, tmp_path / f"{name}.safetensors")
    account = model_account(tmp_path, {"model_type": "gpt2"}, OF_TARGET, names=["model"])
    with pytest.raises(
        CheckpointError, match=r"found extra\.safetensors, which lies beside model\.safetensors, with extra"
    ):
        account.settled()


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
    "two attentions": (
        ("dflash", DFLASH | {"is_causal": False, "dflash_config": DFLASH["dflash_config"] | {"is_causal": True}}),
        "is_causal = False in config.json, beside dflash_config.is_causal = True",
    ),
    **{
        f"two of {name}": (
            (kind, DFLASH | {name: value, "dflash_config": DFLASH["dflash_config"] | {name: other}}),
            f"{name} = {value!r} in config.json, beside dflash_config.{name} = {other!r}",
        )
        for kind, name, value, other in (
            ("dflash", "mask_token_id", 7, 8),
            ("dspark", "markov_rank", 7, 8),
            ("dspark", "markov_head_type", "rnn", "gated"),
            ("dspark", "enable_confidence_head", True, False),
            ("dspark", "confidence_head_with_markov", True, False),
            ("dflash2", "selector_rank", 7, 8),
            ("dflash2", "selector_top_k", 7, 8),
            ("dflash2", "conv_kernel_size", 2, 3),
            ("dflash2", "conv_group_size", 2, 4),
        )
    },
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
