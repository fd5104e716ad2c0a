"""Reading checkpoints: errors for what is missing, misshapen, pickled or left over name tensors, shapes and files."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from harness.models.checkpoint import Checkpoint, CheckpointError, checkpoint_folder, read_json


@pytest.fixture
def folder(tmp_path):
    save_file({"a.weight": torch.ones(2, 3), "b.weight": torch.zeros(4)}, tmp_path / "model.safetensors")
    return tmp_path


def test_tensors_are_taken_by_name_and_shape(folder):
    with Checkpoint(folder) as checkpoint:
        assert torch.equal(checkpoint.take("a.weight", (2, 3)), torch.ones(2, 3))
        assert "b.weight" in checkpoint and "c.weight" not in checkpoint
        with pytest.raises(CheckpointError, match=r"found 1 that it does not: b\.weight"):
            checkpoint.check_used(())
        checkpoint.check_used({"b.weight"})
        checkpoint.check_used((), prefix="a.")


def test_a_missing_tensor_is_named_with_its_folder_and_shape(folder):
    with Checkpoint(folder) as checkpoint, pytest.raises(CheckpointError) as error:
        checkpoint.take("c.weight", (5, 6))
    for part in (str(folder), "c.weight", "[5, 6]", "2 tensors"):
        assert part in str(error.value)


def test_a_misshapen_tensor_is_named_with_both_shapes_and_its_file(folder):
    with Checkpoint(folder) as checkpoint, pytest.raises(CheckpointError) as error:
        checkpoint.take("a.weight", (3, 2))
    for part in (str(folder / "model.safetensors"), "a.weight of shape [3, 2]", "found [2, 3]"):
        assert part in str(error.value)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn])
def test_weights_of_fewer_bits_are_not_read_as_numbers(tmp_path, dtype):
    """Would catch a quantized tensor without its scales that is copied into a weight as it lies there."""
    save_file({"a.weight": torch.ones(2, 3).to(dtype)}, tmp_path / "model.safetensors")
    with Checkpoint(tmp_path) as checkpoint, pytest.raises(CheckpointError, match=r"a\.weight in plain numbers"):
        checkpoint.put("a.weight", torch.zeros(2, 3))


def test_shards_are_found_by_the_index(tmp_path):
    save_file({"a": torch.ones(1)}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({"b": torch.ones(2)}, tmp_path / "model-00002-of-00002.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with Checkpoint(tmp_path) as checkpoint:
        assert checkpoint.take("b", (2,)).numel() == 2
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match="found no model-00002-of-00002"):
        Checkpoint(tmp_path)


def test_a_tensor_lies_in_one_file(tmp_path):
    """Would catch two versions of a tensor, of which the one in the last file is taken."""
    for number in (1, 2):
        save_file({"a": torch.full((1,), float(number))}, tmp_path / f"model-{number}.safetensors")
    with pytest.raises(CheckpointError, match=r"found a in model-1\.safetensors and model-2\.safetensors; take the"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.pt"])
def test_pickled_weights_are_refused(tmp_path, file):
    torch.save({"a": torch.ones(1)}, tmp_path / file)
    with pytest.raises(CheckpointError, match=rf"only pickled ones \({file}\), which are refused"):
        Checkpoint(tmp_path)


def test_a_folder_without_weights_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="found no safetensors file"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 16\n", b"", b"\x10" + bytes(7) + b"{}"],
    ids=["a pointer of Git LFS", "nothing", "cut short"],
)
def test_a_file_that_is_no_safetensors_is_named_with_its_size(tmp_path, content):
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(
        CheckpointError, match=rf"model\.safetensors: expected a safe.*, found {len(content)} bytes that"
    ):
        Checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        ({"metadata": {}}, "index.json: expected the file of each tensor in weight_map, found None"),
        (
            {"weight_map": {"a.weight": "../model.safetensors"}},
            "index.json: expected files of its folder in weight_map",
        ),
        ({"weight_map": {"a.weight": "/model.safetensors"}}, "index.json: expected files of its folder in weight_map"),
        ({"weight_map": {"c.weight": "model.safetensors"}}, "model.safetensors: expected c.weight, which model.saf"),
    ],
    ids=["without a map", "with a file outside", "with an absolute path", "with a map to a file without the tensor"],
)
def test_a_broken_index_is_named(folder, index, reason):
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=reason), Checkpoint(folder) as checkpoint:
        checkpoint.take("c.weight", (1,))


@pytest.mark.parametrize("path", ["./nowhere", "/nowhere/at/all", "one/two/three"])
def test_a_missing_folder_is_not_taken_for_an_id(path):
    with pytest.raises(CheckpointError, match="found no such folder"):
        checkpoint_folder(path)


def test_an_id_that_cannot_be_fetched_is_named_with_the_reason(monkeypatch):
    from huggingface_hub.errors import LocalEntryNotFoundError

    def snapshot_download(name, revision, allow_patterns):
        assert (name, revision) == ("owner/model", "v1")
        assert "*.safetensors" in allow_patterns and not any(".bin" in pattern for pattern in allow_patterns)
        raise LocalEntryNotFoundError("no connection\nsecond line")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    with pytest.raises(CheckpointError, match=r"owner/model: .*\(revision v1\): no connection$"):
        checkpoint_folder("owner/model", "v1")


@pytest.mark.parametrize("with_code", [False, True])
def test_code_is_fetched_only_on_request(monkeypatch, tmp_path, with_code):
    asked = []
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **how: asked.append(how) or str(tmp_path))
    assert checkpoint_folder("owner/model", with_code=with_code) == tmp_path
    assert ("*.py" in asked[0]["allow_patterns"]) == with_code


@pytest.mark.parametrize(("text", "reason"), [("{", "expected JSON"), ("[]", "expected a JSON object, found list")])
def test_broken_json_is_named(tmp_path, text, reason):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=reason):
        read_json(tmp_path / "config.json")
