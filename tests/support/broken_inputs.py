"""Inputs of a run that are wrong in one way each, made of the built-in models in a folder."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from harness.models.zoo import zoo_path
from tests.support.tiny_models import edit_weights

INDEX = "model.safetensors.index.json"


def model(folder: Path, kind: str = "target", **changes: object) -> Path:
    """A copy of a built-in model; `changes` are fields of its config.json, None takes one out."""
    copied = shutil.copytree(zoo_path(kind), folder / kind)
    source = copied / "config.json"
    fields = json.loads(source.read_text()) | changes
    source.write_text(json.dumps({name: value for name, value in fields.items() if value is not None}))
    return copied


def written(path: Path, content: bytes | str) -> Path:
    """The folder of a file, with another content in it."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path.parent


def cut(folder: Path) -> Path:
    """The folder, with weights that end too early."""
    path = folder / "model.safetensors"
    return written(path, path.read_bytes()[:100_000])


def with_tensor(folder: Path, name: str) -> Path:
    """The folder, with one tensor more in its weights."""
    edit_weights(folder, put={name: torch.ones(1)})
    return folder


def quantized(folder: Path, name: str, dtype: torch.dtype) -> Path:
    """The folder, with one weight in another kind of number, a hundredth of which it was."""
    weights = load_file(folder / "model.safetensors")
    edit_weights(folder, put={name: (weights[name] * 100).clamp(-127, 127).to(dtype)})
    return folder


def with_file(folder: Path, name: str) -> Path:
    """The folder, with a tensor in a file beside its weights."""
    save_file({name: torch.ones(1)}, folder / "extra.safetensors")
    return folder


def without(folder: Path, *names: str) -> Path:
    """The folder without some of its files."""
    for name in names:
        (folder / name).unlink()
    return folder


def in_shards(folder: Path, weight_map: dict[str, str]) -> Path:
    """The folder with an index beside its weights."""
    return written(folder / INDEX, json.dumps({"weight_map": weight_map}))


def target(folder: Path) -> list[str]:
    """Settings that run a target."""
    return ["target=local", f"target.path={folder}", "drafter=ngram"]


def head(kind: str, folder: Path) -> list[str]:
    """Settings that run a drafter."""
    return [f"drafter={kind}", f"drafter.path={folder}"]


def prompts(folder: Path, *rows: object) -> list[str]:
    """Settings that play a file of prompts."""
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ["workload=jsonl", f"workload.path={path}", "drafter=ngram"]
