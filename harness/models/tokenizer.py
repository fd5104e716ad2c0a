"""The tokenizer of a checkpoint folder, and the tokens that end a sequence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedConfig

from harness.models.checkpoint import CheckpointError, read_json

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder holds a tokenizer."""
    return any((folder / file).is_file() for file in TOKENIZER_FILES)


def load_tokenizer(folder: Path, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a checkpoint folder. Raises CheckpointError when its files are missing."""
    if not has_tokenizer(folder):
        raise CheckpointError(f"{folder}: expected a tokenizer ({' or '.join(TOKENIZER_FILES)}), found none")
    return AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)


def eos_token_ids(config: PreTrainedConfig, tokenizer: Any, path: Path | None) -> frozenset[int]:
    """Every token that ends a sequence: by generation_config.json, else config.json, and by the tokenizer.

    Files are read as they are, because a configuration class fills in an id of its own where a file names none.
    """
    stated = config.eos_token_id if path is None else stated_eos(path)
    ids = set(stated if isinstance(stated, list) else [stated]) | {getattr(tokenizer, "eos_token_id", None)}
    return frozenset(token for token in ids if token is not None)


def stated_eos(folder: Path) -> int | list[int] | None:
    """The contents of a folder's files."""
    generation = folder / "generation_config.json"
    stated = read_json(generation).get("eos_token_id") if generation.is_file() else None
    return read_json(folder / "config.json").get("eos_token_id") if stated is None else stated
