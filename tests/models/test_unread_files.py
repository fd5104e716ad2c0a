"""Tensors in files that no index names, or beside the weights, count or are refused until the user vouches for them."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from harness.models.accounting import OF_TARGET, model_account
from harness.models.checkpoint import INDEX, CheckpointError
from tests.support.filed_models import file_models, load


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
    with pytest.raises(CheckpointError, match="of a DSpark head; this version does not run heads of that kind"):
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
