"""The index of a checkpoint in several files: which file holds each tensor. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from harness.records.strict_json import parse_json

INDEX = "model.safetensors.index.json"


def not_there(folder: Path, names: Iterable[str]) -> list[str]:
    """Those files that a folder lacks."""
    return sorted({Path(name).name for name in names if not (folder / name).is_file()})


def missing_shards(folder: Path) -> list[str]:
    """The files that a folder's index names and that are not there; an index that cannot be read is for the loader."""
    try:
        listed = parse_json((folder / INDEX).read_bytes())
        names = listed["weight_map"].values()
        return not_there(folder, [name for name in names if isinstance(name, str)])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
