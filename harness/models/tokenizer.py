"""The tokenizer of a checkpoint folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from harness.models.checkpoint import CheckpointError

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder holds a tokenizer."""
    return any((folder / file).is_file() for file in TOKENIZER_FILES)


def load_tokenizer(folder: Path, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a checkpoint folder. Raises CheckpointError when its files are missing."""
    if not has_tokenizer(folder):
        raise CheckpointError(f"{folder}: expected a tokenizer ({' or '.join(TOKENIZER_FILES)}), found none")
    return AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
