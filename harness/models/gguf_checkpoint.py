"""A GGUF file as a checkpoint folder, which everything else reads: weights in float32, config.json, tokenizer.

transformers turns the file's numbers back into float32, exactly; the folder is named after what is in the file and in
those beside it, written once, and kept in the user's cache. Needs the package gguf.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness.models.checkpoint import CheckpointError, configured_by, read_json
from harness.models.described import CONFIG
from harness.models.gguf import check_tokenizer, file_type, gguf_in, gguf_tokenizer, read_header
from harness.models.kept_folders import cache_folder, content_of, kept, state_of, told_if_unreadable
from harness.models.model_types import CONVERTED, QUANTIZATION
from harness.models.token_ids import TOKENIZER_FILES, has_tokenizer
from harness.records.files import UnwritableError, write_atomically

_KEPT = (
    *TOKENIZER_FILES,
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "generation_config.json",
)
"""Copied from the folder of the GGUF file, where that holds a tokenizer."""
FORM = 3
"""Of what is written; another one where the same file would be written otherwise."""


def converted(path: str, tell: Callable[[str], None]) -> Path:
    """The checkpoint folder of a GGUF file, or of a folder with one; written where it is not there yet.

    Args:
        path: with such a file.
        tell: called with a line before work that takes a while.

    Raises:
        CheckpointError: a package is missing, transformers does not read such a file, or its tokenizer cannot be built.
    """
    file = gguf_in(path)
    assert file is not None, "asked before"
    file = file.resolve()
    folder = cache_folder() / "gguf" / f"{file.stem}-{_digest([file, *_beside(file)])[:12]}"

    def write(unfinished: Path) -> None:
        _check(file)
        size = f"{file.stat().st_size / 1e6:,.0f} MB, 4 bits of which become 32"
        tell(f"{file.name} ({size}) is written as a checkpoint in float32, once, to {folder}")
        _write(file, unfinished)

    return kept(folder, write)


def _digest(sources: Sequence[Path]) -> str:
    """Of what is in some files: they are read once for each of their states, if the cache can be written to."""
    states = [f"{source} {state_of(source)}" for source in sources]
    note = cache_folder() / "digests" / hashlib.sha256(f"{FORM} {states}".encode()).hexdigest()
    if note.is_file():
        return note.read_text(encoding="ascii")
    found = hashlib.sha256(str(FORM).encode())
    for source in sources:
        with told_if_unreadable(source), source.open("rb") as stream:
            found.update(f"\n{source.name} {hashlib.file_digest(stream, 'sha256').hexdigest()}".encode())
    with suppress(UnwritableError):
        write_atomically(note, found.hexdigest().encode())
    return found.hexdigest()


def _beside(file: Path) -> list[Path]:
    """The files in its folder that take the place of its own tokenizer; none where there is no tokenizer."""
    there = [file.parent / name for name in _KEPT] if has_tokenizer(file.parent) else []
    return [path for path in there if path.is_file()]


def _check(file: Path) -> None:
    """Raise CheckpointError for what can be known before weights are read."""
    if find_spec("gguf") is None:
        raise CheckpointError(f"{file}: expected the package gguf, which reads such files; pip install gguf")
    header = read_header(file)
    if not has_tokenizer(file.parent):
        check_tokenizer(file, header)


def _write(file: Path, folder: Path) -> None:
    _write_model(file, folder)
    given = _beside(file)
    for path in given:
        (folder / path.name).write_bytes(content_of(path))
    if not given:
        gguf_tokenizer(file).save_pretrained(folder)


def _write_model(file: Path, folder: Path) -> None:
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    from harness.models.general.known_types import quietly

    with configured_by(file), quietly():
        read: Any = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=torch.float32, local_files_only=True
        )
        config = read.config
        # what it read, transformers does not save: it counts as quantized
        del config.quantization_config
        with torch.device("meta"):
            plain = type(read)(config)
        plain.load_state_dict(read.state_dict(), assign=True)
        plain.tie_weights()
    try:
        with quietly():
            plain.save_pretrained(folder)
    except SafetensorError as error:
        # what the system said, in another class
        raise OSError(str(error)) from error
    _state(file, folder)


def _state(file: Path, folder: Path) -> None:
    """Say in config.json where the weights come from, and in generation_config.json which tokens end an answer."""
    header = read_header(file)
    fields = read_json(folder / CONFIG)
    fields.pop(QUANTIZATION, None)
    fields[CONVERTED] = {"file": file.name, "type": file_type(file)}
    (folder / CONFIG).write_text(json.dumps(fields, indent=1))
    ends = _ends(header)
    if ends:
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))


def _ends(header: Mapping[str, Any]) -> list[int]:
    """Ids of the tokens that end a sequence, or a turn."""
    found = [header.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    return list(dict.fromkeys(token for token in found if type(token) is int))
