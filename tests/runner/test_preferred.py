"""Preferred checkpoints: taken where they lie in the Hub cache, target and drafter together, and else the zoo."""

import json
import socket

import huggingface_hub.constants
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models

from harness.config.models import checkpoint_name
from harness.config.schema import SettingsError
from harness.models.tensor_shapes import head_shapes, model_shapes, mtp_shapes
from harness.report.cell_names import drafter_name
from harness.runner.plan.compose import compose_plan
from tests.support.synthetic_cells import analysed, config, simulated_cell

EXPERIMENT = "experiment=pr35461_llama3_eagle"
TARGET, DRAFTER = "meta-llama/Meta-Llama-3-8B-Instruct", "yuhuili/EAGLE-LLaMA3.1-Instruct-8B"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SIZES = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
HEAD = {"model_type": "llama", **SIZES}
MODEL = HEAD | {"num_nextn_predict_layers": 1}
TOKENIZER = Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).to_str()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty Hub cache, and no network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))

    def refuse(*_):
        raise AssertionError("a preferred checkpoint must not be asked for over the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    return tmp_path


def put(cache, name, *files):
    """A tiny snapshot in the layout of a Hub cache: of a head, or of a model with an MTP layer."""
    repository = cache / f"models--{name.replace('/', '--')}"
    folder = repository / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    is_head = name == DRAFTER
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    for file in files or ("config.json", "model.safetensors", *(() if is_head else ("tokenizer.json",))):
        if file.endswith(".safetensors"):
            shapes = head_shapes("eagle", HEAD, (), 1) if is_head else model_shapes(MODEL) | mtp_shapes(MODEL)
            save_file({name: torch.zeros(shape) for name, shape in shapes.items()}, folder / file)
        else:
            config = json.dumps(HEAD if is_head else MODEL)
            (folder / file).write_text({"config.json": config, "tokenizer.json": TOKENIZER}.get(file, ""))
    return str(folder)


def test_both_are_taken_where_both_lie_in_the_cache(cache):
    target, drafter = put(cache, TARGET), put(cache, DRAFTER)
    plan = compose_plan([EXPERIMENT, "backend.device=cuda"])
    assert {cell.target.path for cell in plan.cells} == {target}
    assert {cell.target.name for cell in plan.cells} == {"Meta-Llama-3-8B-Instruct"}
    assert {cell.drafter.path for cell in plan.cells if not cell.is_baseline} == {drafter}
    assert plan.warnings == ()


def test_the_zoo_stands_in_where_nothing_is_there(cache):
    plan = compose_plan([EXPERIMENT, "backend.device=cuda"])
    assert all(cell.target.is_built_in and cell.drafter.path is None for cell in plan.cells)
    assert plan.warnings == (
        f"the zoo's models stand in for {TARGET} (not in the local Hub cache) and "
        f"{DRAFTER} (not in the local Hub cache)",
    )


def test_a_target_without_its_drafter_is_not_taken(cache):
    """Would catch the zoo's drafter beside a real target, which cannot be loaded."""
    put(cache, TARGET)
    (warning,) = compose_plan([EXPERIMENT, "backend.device=cuda"]).warnings
    assert f"{TARGET} (there, but of no use without the other)" in warning
    assert f"{DRAFTER} (not in the local Hub cache)" in warning


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (("config.json", "pytorch_model.bin"), "found only pickled ones (pytorch_model.bin), which are refused"),
        (("model.safetensors",), "config.json: expected this file in the checkpoint folder, found none"),
    ],
    ids=["pickled", "half there"],
)
def test_a_copy_that_cannot_be_loaded_is_told_apart_from_none(cache, files, reason):
    put(cache, TARGET)
    put(cache, DRAFTER, *files)
    (warning,) = compose_plan([EXPERIMENT, "backend.device=cuda"]).warnings
    assert f"{DRAFTER} (in the local Hub cache, but not loadable: " in warning and reason in warning


def test_an_mtp_layer_comes_with_its_target(cache):
    folder = put(cache, "zai-org/GLM-4.7-Flash")
    plan = compose_plan(["experiment=pr35461_glm47_mtp", "backend.device=cuda"])
    assert {cell.target.path for cell in plan.cells} == {folder}
    assert {cell.drafter.path for cell in plan.cells} == {None} and not plan.warnings


def test_a_given_folder_wins_and_the_other_model_must_be_there(cache, tmp_path):
    given = put(tmp_path / "given", "owner/model")
    with pytest.raises(SettingsError, match=r"drafter.preferred: .* not in the local Hub cache; give drafter.path"):
        compose_plan([EXPERIMENT, f"target.path={given}"])
    with pytest.raises(SettingsError, match=r"target.preferred: .* not in the local Hub cache; give target.path"):
        compose_plan([EXPERIMENT, f"drafter.path={given}"])
    drafter = put(cache, DRAFTER)
    plan = compose_plan([EXPERIMENT, f"target.path={given}"])
    assert {(cell.target.path, cell.drafter.path) for cell in plan.cells[1:]} == {(given, drafter)}


def test_without_a_preferred_target_the_zoo_is_no_stand_in(cache):
    put(cache, TARGET)
    put(cache, DRAFTER)
    plan = compose_plan([EXPERIMENT, "target.preferred=null", "backend.device=cuda"])
    assert all(cell.target.is_built_in and cell.drafter.path is None for cell in plan.cells) and not plan.warnings


def test_a_snapshot_is_named_by_its_repository():
    assert checkpoint_name(f"/cache/models--owner--a-model/snapshots/{COMMIT}") == "a-model"
    assert checkpoint_name("owner/a-model") == checkpoint_name("/models/a-model/") == "a-model"


def test_tables_name_a_snapshot_by_its_repository():
    """Would catch a column named by a commit."""
    path = f"/cache/models--yuhuili--EAGLE-LLaMA3.1-Instruct-8B/snapshots/{COMMIT}"
    (cell,) = analysed(simulated_cell(config(drafter__path=path), [0.5], num_prompts=2, num_rounds=2))
    assert drafter_name(cell) == "eagle3 (EAGLE-LLaMA3.1-Instruct-8B)"
