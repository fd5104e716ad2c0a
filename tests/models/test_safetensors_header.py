"""Headers of safetensors files: what our reader finds and refuses is what the library finds and refuses."""

import json
import struct

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from harness.models.checkpoint import CheckpointError, stored_tensors
from harness.models.safetensors_header import BITS, StoredTensor, read_header


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
