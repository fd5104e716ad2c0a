"""Checkpoints: headers, shards, indices and shapes of tensors; errors name tensors, shapes and files."""

from __future__ import annotations

import json
import struct

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from harness.models.checkpoint import Checkpoint, CheckpointError, checkpoint_folder, read_json, stored_tensors
from harness.models.safetensors_header import BITS, StoredTensor, read_header
from harness.models.tensor_shapes import head_shapes, model_shapes, mtp_shapes, wrong_size
from tests.support.tiny_heads import make_head, save
from tests.support.tiny_models import random_causal_lm, random_target, save_target_folder


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


def tensor(begin=0, end=8, shape=(2,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def file_of(header, num_bytes, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + bytes(num_bytes)


def names_by_the_library(path):
    with safe_open(path, framework="np") as file:
        return set(file.keys())


def test_types_and_shapes_are_those_that_were_saved(tmp_path):
    path = tmp_path / "model.safetensors"
    saved = {
        "b": torch.ones(2, 3, dtype=torch.bfloat16),
        "a": torch.zeros(4),
        "none": torch.zeros(0, 7),
        "one": torch.tensor(1),
    }
    save_file(saved, path, metadata={"format": "pt"})
    found = read_header(path)
    assert found == {
        "b": StoredTensor("BF16", (2, 3)),
        "a": StoredTensor("F32", (4,)),
        "none": StoredTensor("F32", (0, 7)),
        "one": StoredTensor("I64", ()),
    }


@pytest.mark.parametrize("dtype", sorted(BITS))
def test_every_type_of_the_library_has_its_size(dtype, tmp_path):
    """Would catch a public checkpoint that is refused for the type of a tensor, and a type of another size."""
    path = tmp_path / "model.safetensors"
    for num_bytes in (BITS[dtype], 2 * BITS[dtype]):
        path.write_bytes(file_of({"a": tensor(0, num_bytes, (8,), dtype)}, num_bytes))
        if num_bytes == BITS[dtype]:
            assert names_by_the_library(path) == set(read_header(path)) == {"a"}
            continue
        with pytest.raises(SafetensorError):
            safe_open(path, framework="np")
        with pytest.raises(ValueError, match=f"tensor 'a', {dtype} of shape"):
            read_header(path)


BROKEN = {
    "empty": b"",
    "seven bytes": bytes(7),
    "no header": bytes(8),
    "a pointer of Git LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 16\n",
    "a header longer than the file": file_of({}, 0, length=99),
    "a list": file_of([], 0),
    "no JSON": file_of(b"{]", 0),
    "cut": file_of({"a": tensor()}, 7),
    "more than its tensors": file_of({"a": tensor()}, 9),
    "a hole before the first": file_of({"a": tensor(4, 12)}, 12),
    "a hole between two": file_of({"a": tensor(), "b": tensor(12, 20)}, 20),
    "two that overlap": file_of({"a": tensor(), "b": tensor(4, 12)}, 12),
    "an unknown type": file_of({"a": tensor(dtype="F31")}, 8),
    "a type that is a list": file_of({"a": tensor() | {"dtype": []}}, 8),
    "a shape below zero": file_of({"a": tensor(shape=(-1, -2))}, 8),
    "a shape that is no list": file_of({"a": tensor() | {"shape": 2}}, 8),
    "no place": file_of({"a": {"dtype": "F32", "shape": [2]}}, 8),
    "an end before the begin": file_of({"a": tensor(8, 0)}, 8),
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_file_that_the_library_refuses_is_refused_in_one_line(content, tmp_path):
    """Would catch a file that only the worker finds damaged, and a reader that ends in another error."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(SafetensorError):
        safe_open(path, framework="np")
    with pytest.raises(CheckpointError) as error:
        stored_tensors(tmp_path)
    assert str(error.value).startswith(
        f"{path}: expected a safetensors file, found {len(content)} bytes that are none ("
    )
    assert "\n" not in str(error.value)


def test_the_index_and_its_files_belong_together(tmp_path):
    """Would catch a tensor that the index places in a file which does not hold it, found only when it is read."""
    save_file({"a": torch.zeros(1)}, tmp_path / "model-1.safetensors")
    save_file({"b": torch.zeros(2, 3)}, tmp_path / "model-2.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"b": "model-2.safetensors", "a": "model-1.safetensors"}}))
    assert stored_tensors(tmp_path) == {"b": StoredTensor("F32", (2, 3)), "a": StoredTensor("F32", (1,))}
    index.write_text(json.dumps({"weight_map": {"b": "model-1.safetensors", "a": "model-1.safetensors"}}))
    with pytest.raises(CheckpointError, match=r"model-1\.safetensors: expected b, which model\.safetensors\.index"):
        stored_tensors(tmp_path)


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
    "dspark": {},
    "dspark with a recurrence": {"own": {"markov_rank": 5, "markov_head_type": "rnn"}},
    "dspark without a Markov head": {"own": {"markov_rank": 0}, "draft_ids": None},
    "dflash2": {},
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
