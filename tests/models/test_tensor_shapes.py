"""Shapes of tensors by config.json alone are those of the modules that load them."""

import pytest

from harness.models.checkpoint import read_json, stored_tensors
from harness.models.tensor_shapes import head_shapes, model_shapes, mtp_shapes, wrong_size
from tests.support.tiny_heads import make_head, save
from tests.support.tiny_models import random_causal_lm, random_target, save_target_folder

TARGETS = {
    "llama": ("llama", {}),
    "tied": ("llama_tied", {}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "one group a head": ("llama", {"num_key_value_heads": None}),
    "qwen3": ("qwen3", {}),
    "qwen3 with biases": ("qwen3", {"attention_bias": True}),
}
HEADS = {
    "eagle": {},
    "eagle with a bias": {"bias": True},
    "eagle with an embedding": {"own_embedding": True},
    "eagle3": {},
    "eagle3 with norms": {"fc_norm": True},
    "eagle3 with a norm": {"norm_before_fc": True},
    "eagle3 of two states": {"aux_layers": (1, 4)},
    "peagle": {},
    "dflash": {"draft_ids": None, "aux_layers": (1, 4)},
}
NUM_JOINED = {"eagle3 of two states": 2, "dflash": 2} | {name: 1 for name in HEADS if name.split()[0] == "eagle"}


def found_in(folder):
    return read_json(folder / "config.json"), stored_tensors(folder)


@pytest.mark.parametrize(("kind", "changes"), TARGETS.values(), ids=TARGETS)
def test_a_model_has_the_tensors_that_its_config_asks_for(kind, changes, tmp_path):
    """Would catch a good checkpoint that is refused, and a tensor that is missed only when it is loaded."""
    fields, tensors = found_in(save_target_folder(tmp_path, random_causal_lm(kind, **changes)))
    assert model_shapes(fields) == {name: tensor.shape for name, tensor in tensors.items()}
    assert wrong_size(fields) is None


def test_an_mtp_layer_has_its_tensors(tmp_path):
    target = random_target("qwen3")
    save_target_folder(tmp_path, target.causal_lm)
    before = set(stored_tensors(tmp_path))
    save(make_head("mtp", target), tmp_path)
    fields, tensors = found_in(tmp_path)
    assert mtp_shapes(fields) == {name: tensors[name].shape for name in tensors.keys() - before}


@pytest.mark.parametrize("name", HEADS)
def test_a_head_has_the_tensors_that_its_config_asks_for(name, tmp_path):
    """The same of heads; which tokens they draft, and what stands for masked states, have shapes of their own."""
    save(make_head(name.split()[0], random_target(), **HEADS[name]), tmp_path)
    fields, tensors = found_in(tmp_path)
    shapes = {name: tensor.shape for name, tensor in tensors.items() if name not in ("d2t", "t2d", "mask_hidden")}
    expected = head_shapes(name.split()[0], fields, tensors, NUM_JOINED.get(name, 3))
    assert expected == {name: shape for name, shape in shapes.items() if name in expected}
    assert shapes.keys() - expected.keys() <= {"embed_tokens.weight"} and len(expected) > 8


@pytest.mark.parametrize(
    ("field", "value"), [("hidden_size", "24"), ("num_hidden_layers", 0), ("head_dim", 8.0), ("vocab_size", True)]
)
def test_a_size_that_is_no_count_is_named(field, value):
    assert wrong_size({field: value}) == f"expected {field} as a whole number of 1 or more, found {value!r}"
