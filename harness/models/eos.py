"""Which tokens end a sequence, as a checkpoint's files and its tokenizer say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

from harness.models.checkpoint import read_json


def eos_token_ids(config: PreTrainedConfig, tokenizer: Any, path: Path | None) -> frozenset[int]:
    """Every token that ends a sequence: by generation_config.json, else config.json, and by the tokenizer.

    Files are read as they are, because a configuration class fills in an id of its own where a file names none.
    """
    stated = config.eos_token_id if path is None else stated_eos(path)
    ids = set(stated if isinstance(stated, list) else [stated]) | {getattr(tokenizer, "eos_token_id", None)}
    return frozenset(token for token in ids if token is not None)


def stated_eos(folder: Path) -> int | list[int] | None:
    """What the files of a folder say."""
    generation = folder / "generation_config.json"
    stated = read_json(generation).get("eos_token_id") if generation.is_file() else None
    return read_json(folder / "config.json").get("eos_token_id") if stated is None else stated
