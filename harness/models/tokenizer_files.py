"""The files of a tokenizer, read without transformers, which takes a second to import, and without torch."""

from __future__ import annotations

import json
from pathlib import Path

from harness.models.checkpoint import CheckpointError, read_json, reason_of
from harness.models.token_ids import TOKENIZER, TOKENIZER_FILES, has_tokenizer

TEMPLATE = "chat_template.jinja"
TOKENIZER_SETTINGS = "tokenizer_config.json"


def check_tokenizer_files(folder: Path, *, is_needed: bool) -> None:
    """Raise CheckpointError where a tokenizer's files are damaged, or missing although one is needed."""
    if not has_tokenizer(folder):
        if is_needed:
            raise CheckpointError(f"{folder}: expected a tokenizer ({' or '.join(TOKENIZER_FILES)}), found none")
        return
    for path in sorted(folder.glob("*token*.json")):
        if path.name != TOKENIZER:
            read_json(path)
    if (folder / TOKENIZER).is_file():
        from tokenizers import Tokenizer

        try:
            Tokenizer.from_file(str(folder / TOKENIZER))
        except Exception as error:
            # the library has no class of its own for it
            raise CheckpointError(f"{folder / TOKENIZER}: expected a tokenizer, found {reason_of(error)}") from error


def template_bytes(folder: Path) -> int:
    """Size of a folder's chat template: about as much as it puts around one message, or more; 0 without one."""
    try:
        if (folder / TEMPLATE).is_file():
            return (folder / TEMPLATE).stat().st_size
        settings = folder / TOKENIZER_SETTINGS
        found = read_json(settings).get("chat_template") if settings.is_file() else None
    except (CheckpointError, OSError):
        # a worker says what is wrong
        return 0
    return len(json.dumps(found).encode()) if found is not None else 0
