"""Every field and tensor of a model is computed, known to have no effect, or refused; the user may vouch for others."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from harness.models.accounting import OF_DRAFTER, OF_TARGET, Accepted, head_account, model_account
from harness.models.checkpoint import CheckpointError
from harness.models.decoder_layer import config_class, infer_dense_layers
from harness.models.dflash2 import DFlash2Config
from harness.models.dflash_anchor import NAMES as ANCHOR_NAMES
from harness.models.dflash_config import DFlashConfig
from harness.models.dspark import DSparkConfig
from harness.models.eagle import EagleConfig
from harness.models.eagle3_config import Eagle3Config
from harness.models.known_fields import DEFAULTS, GENERATION, LAYERS, model_layout, tokenizer_layout
from harness.models.known_head_fields import HEAD_LAYOUTS
from harness.models.model_types import MODEL_TYPES
from harness.models.mtp import load_mtp
from harness.models.peagle import PEagleConfig
from harness.models.rounded_weights import rounded_weights
from harness.models.shape import read_shape, shape_names
from harness.models.target import load_target
from tests.support.filed_models import NOWHERE, ROLES, account, file_models, folder_of, load, put
from tests.support.public_configs import HEADS, REFUSED, TARGETS
from tests.support.tiny_heads import make_head, save
from tests.support.tiny_models import (
    edit_config,
    edit_weights,
    positions_from,
    random_causal_lm,
    random_target,
    random_tokens,
    save_target_folder,
)
from tests.support.tiny_shapes import GLM, SHAPE

UNKNOWN = "which this version does not know; choose another checkpoint or, if you know that nothing here depends on it"


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


PLACES = [
    *((role, "config.json", None) for role in ROLES),
    *((role, "config.json", "transformer_layer_config") for role in ("eagle3", "peagle", "dflash")),
    *((role, "config.json", "speculators_config") for role in ("eagle3", "dflash")),
    ("eagle3 original", "config.json", "eagle_config"),
    ("dflash original", "config.json", "dflash_config"),
    ("target", "config.json", "rope_parameters"),
    ("target", "generation_config.json", None),
    ("target", "tokenizer_config.json", None),
]
"""Every place of a field that is read: role, file, and the object around it."""


@pytest.mark.parametrize(("role", "file", "within"), PLACES)
def test_a_field_that_nobody_knows_is_refused_until_the_user_vouches_for_it(copied, role, file, within):
    """Would catch a number that belongs to another model than its row says: a field that is dropped in silence."""
    folder = copied(folder_of(role))
    name = "attend_twice" if within is None else f"{within}.attend_twice"
    put(folder, file, within, "attend_twice", None)
    assert not [text for text in load(role, folder).assumptions if "attend_twice" in text]
    put(folder, file, within, "attend_twice", 3)
    section = "target" if role == "target" else "drafter"
    with pytest.raises(CheckpointError) as refused:
        load(role, folder)
    assert str(refused.value).endswith(f"found {name} = 3 in {file}, {UNKNOWN}, '{section}.accept_unknown=[{name}]'")
    told = [text for text in load(role, folder, name).assumptions if "attend_twice" in text]
    assert told == [
        f"{name} = 3 in {file}, which this version does not know: left out, because {section}.accept_unknown vouches "
        "for it"
    ]


@pytest.mark.parametrize("role", ROLES)
def test_a_tensor_that_nothing_reads_is_refused_until_the_user_vouches_for_it(copied, role):
    folder = copied(folder_of(role))
    edit_weights(folder, put={"extra.0": torch.ones(1), "extra.1": torch.ones(1)})
    with pytest.raises(CheckpointError, match=r"found 2 tensors that nothing reads: extra\.0, extra\.1; choose"):
        load(role, folder)
    with pytest.raises(CheckpointError, match=r"found a tensor that nothing reads: extra\.1; choose"):
        load(role, folder, "extra.0")
    assert any("extra.0, extra.1: left out, because" in text for text in load(role, folder, "extra.*").assumptions)


HARMLESS = {
    "target": ["model.layers.0.self_attn.rotary_emb.inv_freq"],
    "eagle3": ["layers.0.self_attn.rotary_emb.inv_freq", "verifier_norm.weight", "verifier_lm_head.weight"],
    "eagle3 original": ["rotary_emb.inv_freq"],
    "dflash": ["verifier_lm_head.weight"],
    "dspark": ["verifier_norm.weight"],
}


@pytest.mark.parametrize("role", HARMLESS)
def test_tensors_that_are_known_to_be_harmless_need_no_word(copied, role):
    folder = copied(role)
    before = load(role, folder).assumptions
    edit_weights(folder, put={name: torch.ones(2) for name in HARMLESS[role]})
    assert load(role, folder).assumptions == before


@pytest.mark.parametrize(
    ("role", "name", "message"),
    [
        ("target", "model.layers.0.mlp.up_proj.weight_scale_inv", "of quantized weights, .*; dequantize the"),
        ("eagle3", "layers.0.mlp.up_proj.weight_scale", "of quantized weights, .*; dequantize the checkpoint"),
        ("eagle3", "layers.0.self_attn.q_proj.qweight", "of quantized weights"),
        ("target", "model.layers.0.self_attn.q_proj.lora_A.weight", "of an adapter; merge the adapter into"),
        ("dflash", "markov_head.markov_w1.weight", "of a DSpark head; run it with drafter=dspark"),
        ("dflash", "confidence_head.proj.weight", "of a DSpark head"),
        ("dflash original", "candidate_selector.predecessor_codebook", "of a DFlash2 head"),
        ("dflash original", "layers.0.attention_conv.base_kernel", "of a DFlash2 head; run it with drafter=dflash2"),
        ("dspark", "layers.0.mlp_conv.base_kernel", "of a DFlash2 head"),
        ("dflash2", "markov_head.markov_w2.weight", "of a DSpark head"),
        ("dflash original", "prefix_gru.weight_ih_l0", "of a Domino head"),
        ("target", "model.layers.7.mlp.up_proj.weight", r"a tensor that nothing reads: model\.layers\.7\.mlp"),
        ("eagle", "layers.0.self_attn.q_proj.bias", r"a tensor that nothing reads: layers\.0\.self_attn\.q_proj\.bias"),
    ],
)
def test_tensors_are_told_by_what_they_belong_to(copied, role, name, message):
    """Would catch a quantized head that is refused for a tensor named weight_scale, and DSpark measured as DFlash."""
    folder = copied(role)
    edit_weights(folder, put={name: torch.ones(2)})
    with pytest.raises(CheckpointError, match=message):
        load(role, folder)


@pytest.mark.parametrize(
    ("name", "role", "message"),
    [
        ("attend_twise", "target", "which is none of them; leave it out"),
        ("hidden_size", "target", "which it computes or which has no effect; leave it out"),
        ("model.norm.*", "target", "which it computes or which has no effect; leave it out"),
        ("use_cache", "eagle3", "which is none of them; leave it out"),
    ],
)
def test_vouching_for_what_is_not_there_or_is_known_is_refused(models, name, role, message):
    """Would catch a name with a typing error in it that a report then carries for nothing."""
    with pytest.raises(CheckpointError, match=f"accept_unknown: expected .*, found .*, {message}"):
        load(role, models / role, name)


@pytest.mark.parametrize("lone", ["*", ""])
def test_everything_cannot_be_vouched_for_at_once(copied, lone):
    folder = copied("eagle3")
    edit_weights(folder, put={"extra": torch.ones(1)})
    with pytest.raises(CheckpointError, match="a tensor that nothing reads: extra"):
        load("eagle3", folder, lone)


WINDOW_ON = {"use_sliding_window": True, "max_window_layers": 2}
WINDOW = {"use_sliding_window": True, "sliding_window": 32}
CHANGES = {
    "windows": (WINDOW, "use_sliding_window = True in .*, which would change what the layers attend to"),
    "a window alone": ({"sliding_window": 32}, "sliding_window = 32 in .*, which would change what the layers attend"),
    "scaled embeddings": (
        {"input_embedding_scale": 2.0},
        "input_embedding_scale = 2.0 in .*, which would change the sc",
    ),
    "scaled logits": ({"output_multiplier": 0.5}, "output_multiplier = 0.5 in .*, which would change the scale of"),
    "logits scaled under another name": ({"logit_scale": 0.5}, "logit_scale = 0.5 in .*, which would change the scale"),
    "capped logits": (
        {"final_logit_softcapping": 30.0},
        "final_logit_softcapping = 30.0 in .*, which would change a c",
    ),
    "scaled residuals": ({"residual_multiplier": 0.2}, "residual_multiplier = 0.2 in .*, which would change the scale"),
    "partly rotated heads": (
        {"partial_rotary_factor": 0.5},
        "partial_rotary_factor = 0.5 in .*, which would change how",
    ),
}
"""Fields with an effect that is not computed, whatever the model."""


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("role", ROLES)
def test_fields_with_an_effect_that_is_not_computed_are_refused(models, role, change):
    """Would catch a head that is run with full attention, or without its scale, under the name of its file."""
    fields, message = CHANGES[change]
    data = json.loads((models / folder_of(role) / "config.json").read_text())
    if "transformer_layer_config" in data:
        changed = data | {"transformer_layer_config": data["transformer_layer_config"] | fields}
    else:
        changed = data | fields
    if change == "a window alone" and "qwen3" in json.dumps(changed):
        # windows of Qwen3 are off until they are asked for
        assert account(role, changed)
        return
    with pytest.raises(CheckpointError, match=message):
        account(role, changed)


@pytest.mark.parametrize("role", ROLES)
def test_rounded_weights_are_refused_in_heads_and_told_of_models(models, role):
    """Would catch weights of a head that are read as numbers without their scales."""
    rounded = {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    data = json.loads((models / folder_of(role) / "config.json").read_text())
    if role in ("target", "draft model"):
        told = account(role, data | rounded).assumptions
        assert "gptq weights, 4 bits, run as transformers loads them on the device" in told
        return
    with pytest.raises(CheckpointError, match=r"quantization_config = .*; dequantize the checkpo"):
        account(role, data | rounded)


@pytest.mark.parametrize(
    ("stated", "label"),
    [
        ({"quant_method": "awq", "bits": 4}, "awq weights, 4 bits"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True, "load_in_4bit": False}, "bitsandbytes weights, 8 bits"),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"num_bits": 4}}, "b": {}}},
            "compressed-tensors weights, 4 bits",
        ),
        ({"quant_method": "mxfp4"}, "mxfp4 weights"),
        ({"quant_method": "gptq", "bits": [4]}, "gptq weights"),
        ("int4", "weights quantized in a way that is not named"),
        (None, ""),
    ],
)
def test_how_weights_were_rounded_is_told_as_their_file_says_it(stated, label):
    """Would catch the bits of another field, and a file of another form that ends in an error of Python's."""
    assert rounded_weights({"quantization_config": stated}) == label


@pytest.mark.parametrize(
    ("role", "more", "is_named"),
    [("target", {}, True), ("target", {"attend_twice": 3}, False), ("draft model", {}, False)],
    ids=["computed", "beside what they do not know", "no such setting"],
)
def test_layers_of_transformers_are_named_where_they_would_take_the_folder(role, more, is_named):
    with pytest.raises(CheckpointError, match="use_sliding_window = True in") as refused:
        account(role, TARGETS["Qwen3"][0] | WINDOW_ON | {"sliding_window": 32} | more)
    assert ("target.layers=transformers" in str(refused.value)) == is_named


def test_a_window_that_reaches_no_layer_is_no_window():
    """As in published files of Qwen2 and Qwen3, which state one and do not use it."""
    sizes = TARGETS["Qwen3"][0]
    for fields in (
        {"sliding_window": 4096},
        {"use_sliding_window": True, "sliding_window": None},
        WINDOW | {"max_window_layers": 36},
        WINDOW | {"layer_types": ["full_attention"] * 36},
    ):
        assert not account("target", sizes | fields).assumptions
    with pytest.raises(CheckpointError, match="would change what the layers attend to"):
        # of a size of its own where none is stated
        account("target", {k: v for k, v in sizes.items() if k != "sliding_window"} | WINDOW_ON)
    head = HEADS["EAGLE-3 of SpecForge"][1]
    assert not account("eagle3", head | {"sliding_window": 131072, "use_sliding_window": False}).assumptions


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"suppress_tokens": [3]},
            r"suppress_tokens = \[3\] in generation_config\.json, which would change tokens that",
        ),
        ({"forced_eos_token_id": 2}, "which would change tokens that must come"),
        ({"no_repeat_ngram_size": 3}, "which would change tokens that may not repeat"),
        ({"sequence_bias": [[[3], -9.0]]}, "which would change the logits"),
        ({"guidance_scale": 1.5}, "which would change the logits"),
    ],
)
def test_what_a_generation_config_does_to_the_law_is_refused(copied, fields, message):
    folder = copied("target")
    (folder / "generation_config.json").write_text(json.dumps(fields))
    with pytest.raises(CheckpointError, match=message):
        load_target(folder)


def test_sampling_that_a_file_recommends_is_the_runs_to_choose_and_penalties_are_told(copied):
    """Would catch a model that is refused for its temperature, and a penalty that no report tells of."""
    folder = copied("target")
    recommended = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "max_new_tokens": 2048}
    (folder / "generation_config.json").write_text(json.dumps(recommended | {"repetition_penalty": 1.0}))
    assert load_target(folder).assumptions == ()
    (folder / "generation_config.json").write_text(json.dumps(recommended | {"repetition_penalty": 1.05}))
    assert load_target(folder).assumptions == (
        "generation_config.json asks for repetition_penalty = 1.05, which is not done: a run samples as its section "
        "decoding says",
    )


def test_code_of_a_tokenizer_is_run_where_it_is_trusted_and_refused_elsewhere(copied):
    """Would catch text that another tokenizer makes than the one that comes with the model."""
    folder = copied("target")
    put(folder, "tokenizer_config.json", "auto_map", "AutoTokenizer", ["own.Tokenizer", None])
    fields = json.loads((folder / "config.json").read_text())
    with pytest.raises(CheckpointError, match=r"auto_map = .* in tokenizer_config\.json, which is code of its own: "):
        model_account(folder, fields, OF_TARGET).settled()
    assert model_account(folder, fields, OF_TARGET, runs_code=True).settled().assumptions == ()


def test_the_files_of_a_drafter_beside_its_config_are_its_targets_to_decide(copied):
    """Its tokens are compared with the target's, and drafts are sampled as the run says."""
    folder = copied("target")
    (folder / "generation_config.json").write_text(json.dumps({"suppress_tokens": [3]}))
    assert load("draft model", folder).assumptions == ()


def test_files_beside_the_weights_that_say_that_these_are_not_all_are_refused(copied):
    """Would catch the base of an adapter, or quantized weights whose config.json does not say so, under their name."""
    folder = copied("target")
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": None}}))
    assert load_target(folder).assumptions == ()
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "FP8"}}))
    with pytest.raises(CheckpointError, match=r"quant_algo = 'FP8' in hf_quant_config\.json, .*; dequantize the check"):
        load_target(folder)
    (folder / "hf_quant_config.json").unlink()
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"found adapter_config\.json, of an adapter that is not merged"):
        load_target(folder)


@pytest.mark.parametrize("name", TARGETS)
def test_public_models_are_accounted_for_without_a_word_but_for_what_they_leave_out(name):
    fields, left_out = TARGETS[name]
    assumed = account("target", fields).assumptions
    assert [text.partition(" does not state ")[2].partition(",")[0] for text in assumed] == [*left_out]


@pytest.mark.parametrize("name", HEADS)
def test_public_heads_are_accounted_for_without_a_word_but_for_what_they_leave_out(name):
    kind, fields, left_out = HEADS[name]
    assumed = account(kind, fields).assumptions
    assert [text.partition(" does not state ")[2].partition(",")[0] for text in assumed] == [*left_out]


@pytest.mark.parametrize("name", REFUSED)
def test_heads_that_are_something_else_are_refused_by_what_they_are(name):
    kind, fields, message = REFUSED[name]
    # accept_unknown takes neither another kind of head nor weights of fewer bits
    can_be_vouched = any(word in name for word in ("windows", "norms", "scale"))
    vouched = OF_DRAFTER if can_be_vouched else replace(OF_DRAFTER, names=tuple(fields))
    with pytest.raises(CheckpointError, match=message):
        account(kind, fields, vouched)


@pytest.mark.parametrize("name", shape_names())
def test_the_named_shapes_are_accounted_for(name):
    fields = read_shape(name).config
    told = account("target", fields).assumptions
    assert all(text.startswith("layers are transformers' own") for text in told)
    assert len(told) == (fields["model_type"] not in MODEL_TYPES)


@pytest.mark.parametrize("name", ["vocab_size", "hidden_size", "num_hidden_layers"])
@pytest.mark.parametrize("role", ROLES)
def test_sizes_are_never_guessed(models, role, name):
    """Would catch the sizes of a Llama of 7 billion parameters for a file that says nothing."""
    data = json.loads((models / folder_of(role) / "config.json").read_text())
    del data.get("transformer_layer_config", data)[name]
    with pytest.raises(CheckpointError, match=f"expected {name}, found none; the sizes of a model are never guessed"):
        account(role, data)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_what_is_told_to_be_taken_is_what_the_configuration_takes(model_type):
    config = config_class(model_type)()
    found = {name: getattr(config, name, None) for name in DEFAULTS[model_type]}
    found["rope_theta"] = config.rope_parameters["rope_theta"]
    told = {name: item.value for name, item in DEFAULTS[model_type].items() if item.value is not None}
    assert told == {name: found[name] for name in told}


OTHER_VALUES = {
    "hidden_act": "gelu", "rope_theta": 123.0, "rms_norm_eps": 0.5, "num_key_value_heads": 1, "head_dim": 8,
    "rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0}, "n_group": 2, "topk_group": 2,
    "rope_scaling": {"rope_type": "linear", "factor": 3.0}, "mlp_layer_types": ["sparse"] * 5, "eos_token_id": 9,
    "num_local_experts": 2, "norm_topk_prob": False, "rope_interleave": False, "routed_scaling_factor": 9.0,
    "model_type": "llama",
}  # fmt: skip
"""Another value than that of a tiny model, for fields of which it is not true or one more."""


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_a_field_that_counts_as_used_reaches_the_configuration(model_type):
    """Would catch a row of the table that calls a field used which nothing reads."""
    changes = {"llama": {}, "qwen3": {"model_type": "qwen3"}, "glm4_moe_lite": GLM}[model_type]
    sizes = {name: value for name, value in (SHAPE | changes).items() if value is not None}
    sizes |= {"num_attention_heads": 4, "hidden_size": 64}

    def read(fields):
        """What the class itself knows: it keeps whatever else it is given, too."""
        config = config_class(model_type).from_dict(dict(fields))
        infer_dense_layers(config, fields)
        return {name: getattr(config, name) for name in config_class(model_type)().to_dict()}

    before, layout = read(sizes), model_layout(model_type, runs_code=False)
    used = [name for name, known in layout.items() if not known.note]
    unread = []
    for name in used:
        value = sizes.get(name)
        more = value + value if type(value) is int else not value
        if read(sizes | {name: OTHER_VALUES.get(name, more)}) == before:
            unread.append(name)
    # by which the class is chosen, and where MTP layers are looked for
    assert set(unread) <= {"model_type", "num_nextn_predict_layers"}


def test_what_counts_as_without_effect_changes_nothing(copied):
    """Would catch a reason in the table that is not true: all such fields at once, with other values."""
    folder = copied("target")
    tokens, positions = random_tokens(1, 9), positions_from([0], 9)

    def logits():
        target = load_target(folder, dtype=torch.float32)
        return target.logits(target.forward(tokens, positions, None).hidden), target.eos_token_ids

    before = logits()
    for file, layout in (
        ("config.json", model_layout("llama", runs_code=False)),
        ("generation_config.json", GENERATION),
        ("tokenizer_config.json", tokenizer_layout(runs_code=False)),
    ):
        ignored = [name for name, known in layout.items() if known.note and known.is_computed is None]
        path = folder / file
        data = json.loads(path.read_text())
        typed = {"pretraining_tp": 2, "initializer_range": 0.9, "attention_dropout": 0.5, "use_cache": False}
        typed |= {"bos_token_id": 7, "pad_token_id": 7, "dtype": "bfloat16", "torch_dtype": "bfloat16"}
        typed |= {"output_attentions": False, "output_hidden_states": True, "return_dict": False, "num_labels": 2}
        typed |= {
            "chunk_size_feed_forward": 1,
            "id2label": {"0": "x"},
            "label2id": {"x": 0},
            "problem_type": "regression",
        }
        typed |= {"padding_side": "left", "truncation_side": "left", "model_max_length": 5, "model_input_names": ["x"]}
        path.write_text(json.dumps(data | {name: typed.get(name, "x") for name in ignored}))
    after = logits()
    assert torch.equal(before[0], after[0]) and before[1] == after[1]


OF_HEADS = OTHER_VALUES | {
    "model_type": "gpt2", "vocab_size": 50, "head_dim": 16, "rope_type": "linear", "type": "linear",
    "attention_bias": True, "mlp_bias": True, "draft_vocab_size": 3, "target_hidden_size": 7, "mask_token_id": 3,
    "pard_token": 3,
    "ptd_token_id": 3, "parallel_drafting": False, "block_size": 3, "num_target_layers": 3, "name_or_path": "another",
    "rounded_weights": "GGUF Q4_0 weights",
    **{key: [0, 3] for key in ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids", "target_layer_ids")},
    **dict.fromkeys(("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"), True),
    **dict.fromkeys(("sample_from_anchor", "query_zero_predicts_next"), True), "bias": True,
    **{name: SHAPE[name] * 2 for name in ("hidden_size", "intermediate_size", "max_position_embeddings")},
    "num_hidden_layers": 3, "num_attention_heads": 2, "markov_rank": 5, "markov_head_type": "rnn",
    **dict.fromkeys(("enable_confidence_head", "confidence_head_with_markov"), True),
    "conv_kernel_size": 3, "conv_group_size": 2, "selector_rank": 5, "selector_top_k": 4,
}  # fmt: skip
"""Another value than that of the heads here, for every field of a head."""
CONFIGS = {
    "eagle": EagleConfig,
    "eagle3": Eagle3Config,
    "peagle": PEagleConfig,
    "dflash": DFlashConfig,
    "dspark": DSparkConfig,
    "dflash2": DFlash2Config,
}


def used_rows(layout, fields, around=()):
    """The fields of a table that count as used, those of objects too, each with the objects around it."""
    for name, known in layout.items():
        if known.layout is not None:
            inner = fields.get(name) or {}
            yield from used_rows(known.layout(inner), inner, (*around, name))
        elif not known.note:
            yield (*around, name)


@pytest.mark.parametrize("role", [role for role in ROLES if "target" not in role and "model" not in role])
def test_every_field_of_a_head_that_counts_as_used_reaches_its_configuration(models, role):
    """Would catch a row of the table that calls a field of a head used which nothing reads: a value that is read gives
    another configuration, or is refused."""
    kind, target = role.split()[0], random_target()
    given = (target,) if kind != "eagle" else ()
    text = (models / role / "config.json").read_text()

    def read(fields):
        try:
            # places that contradict each other are refused there
            stated = head_account(kind, NOWHERE, fields, OF_DRAFTER).fields
            config = CONFIGS[kind].from_dict(stated, *given)
        except ValueError:
            return None
        return config.to_dict(), config.layer.to_dict(), getattr(config, "assumptions", ())

    before, rows = read(json.loads(text)), list(used_rows(HEAD_LAYOUTS[kind](json.loads(text)), json.loads(text)))
    assert before is not None and len(rows) > 12
    unread = []
    for *around, name in rows:
        fields = inner = json.loads(text)
        for place in around:
            inner = inner.setdefault(place, {})
        # blocks of DSpark begin to draft at the anchor unless they say otherwise
        value = OF_HEADS[name] if kind != "dspark" or name not in ANCHOR_NAMES else False
        assert inner.get(name) != value, f"{name} needs another value"
        inner[name] = value
        if read(fields) == before:
            unread.append((*around, name))
    assert not unread


def test_layers_of_every_type_have_one_table():
    assert LAYERS.keys() == DEFAULTS.keys() == MODEL_TYPES.keys()


def test_an_mtp_layer_is_accounted_for_beside_its_target(tmp_path):
    """Would catch a tensor of the layer that is left out, and one of the target that the drafter has to answer for."""
    target = random_target()
    save_target_folder(tmp_path, random_causal_lm())
    save(make_head("mtp", target), tmp_path)
    name = f"model.layers.{target.num_layers}.extra"
    edit_weights(tmp_path, put={name: torch.ones(1)})
    loaded = load_target(tmp_path)
    assert loaded.assumptions == ()
    with pytest.raises(
        CheckpointError, match=r"found a tensor that nothing reads: model\.layers\.7\.extra.*'drafter\.acc"
    ):
        load_mtp(None, loaded)
    (told,) = load_mtp(None, loaded, accepted=Accepted("drafter", (name,))).assumptions
    assert told.startswith(f"a tensor that nothing reads: {name}: left out")


def test_what_is_vouched_for_is_left_out_of_what_is_computed(copied):
    """Would catch a field that is accepted and then takes effect in the configuration's class after all."""
    folder = copied("target")
    edit_config(folder, use_sliding_window=True, sliding_window=2)
    target = load_target(folder, accepted=Accepted("target", ("use_sliding_window",)))
    assert not hasattr(target.config, "use_sliding_window") and len(target.assumptions) == 1


def test_a_d2t_that_is_missing_beside_a_t2d_that_leaves_tokens_out_is_refused(copied):
    folder = copied("peagle")
    tensors = load_file(folder / "model.safetensors")
    edit_weights(folder, drop="d2t")
    load("peagle", folder)
    edit_weights(folder, put={"t2d": torch.zeros_like(tensors["t2d"])})
    with pytest.raises(CheckpointError, match="expected d2t beside a t2d that leaves tokens out"):
        load("peagle", folder)
