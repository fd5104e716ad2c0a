"""The tokenizer of a checkpoint folder, and the tokens that end a sequence."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.models.checkpoint import CheckpointError, read_fields, read_json, reason_of
from harness.models.token_ids import TOKENIZER_FILES, has_tokenizer, stored_token_ids
from harness.records.strict_json import shown

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def load_tokenizer(folder: Path, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a checkpoint folder. Raises CheckpointError when its files are missing or damaged."""
    # it imports torch
    from transformers import AutoTokenizer

    if not has_tokenizer(folder):
        raise CheckpointError(f"{folder}: expected a tokenizer ({' or '.join(TOKENIZER_FILES)}), found none")
    with _read_from(folder):
        given = _known_config(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code, **given)
        # what is of another type is used, and told of, only now
        tokenizer.encode("")
    return _without_limit(tokenizer)


def _known_config(folder: Path) -> dict[str, PreTrainedConfig]:
    """`config` where transformers would read a configuration with a class that takes seconds to import, and would look
    at its fields alone; nothing where the class counts, too."""
    from harness.models.llama_config import own_config_class

    source, settings = folder / "config.json", folder / "tokenizer_config.json"
    if not (source.is_file() and settings.is_file()):
        return {}
    stated, fields = read_fields(source), read_json(settings)
    own = own_config_class(stated)
    names_class = fields.get("tokenizer_class") is not None and "auto_map" not in fields
    return {} if own is None or not names_class else {"config": own.from_dict(stated)}


def load_own_tokenizer(folder: Path) -> Any:
    """The tokenizer.json of a folder whose config.json may name a model type that transformers does not know. Takes a
    second for transformers, and no torch."""
    from transformers import PreTrainedTokenizerFast

    with _read_from(folder):
        return _without_limit(PreTrainedTokenizerFast.from_pretrained(folder))


def _without_limit(tokenizer: Any) -> Any:
    """The tokenizer, which warns of no length: what fits is a matter of the target's positions."""
    tokenizer.model_max_length = sys.maxsize
    return tokenizer


@contextmanager
def _read_from(folder: Path) -> Iterator[None]:
    """Turn whatever the libraries raise into a CheckpointError that names the damaged file, or the folder."""
    try:
        yield
    except Exception as error:
        for path in sorted(folder.glob("*token*.json")):
            read_json(path)
        raise CheckpointError(
            f"{folder}: expected a tokenizer that transformers takes, found {reason_of(error)}"
        ) from error


def eos_token_ids(
    configured: int | list[int] | None, tokenizer: Any, path: Path | None, vocab_size: int | None
) -> frozenset[int]:
    """Every token that ends a sequence: by generation_config.json, else config.json, and by the tokenizer.

    Files are read as they are, because a configuration class fills in an id of its own where a file names none.

    Args:
        configured: what the configuration of a model says that lies in no folder.
        tokenizer: None for one that stands in.
        path: the model's folder.
        vocab_size: of the model; None where its files do not say.

    Raises:
        CheckpointError: one is no token of the model, which no answer would end with.
    """
    stated = _listed(configured) if path is None else stated_eos(path)
    ids = [*stated, *_listed(getattr(tokenizer, "eos_token_id", None))]
    wrong = [token for token in ids if type(token) is not int or not 0 <= token < (vocab_size or token + 1)]
    if wrong:
        below = "" if vocab_size is None else f" from 0 to {vocab_size - 1}"
        raise CheckpointError(f"{path}: eos_token_id: expected ids of tokens{below}, found {shown(wrong[0])}")
    return frozenset(ids)


def stated_eos(folder: Path) -> list[int]:
    """The contents of a folder's files."""
    return _generation_eos(folder) or _listed(read_json(folder / "config.json").get("eos_token_id"))


def overruled_eos(folder: Path, configured: Any) -> str | None:
    """What to say where config.json names tokens that generation_config.json, which is taken, leaves out."""
    generation, own = _generation_eos(folder), _listed(configured)
    taken = {*map(str, generation), str(_eos_of_tokenizer(folder))}
    if not generation or taken.issuperset(map(str, own)):
        return None
    return (
        f"config.json names eos_token_id = {shown(own)}, and generation_config.json {shown(generation)}, which counts "
        "beside the tokenizer's own"
    )


def _generation_eos(folder: Path) -> list[Any]:
    file = folder / "generation_config.json"
    return _listed(read_json(file).get("eos_token_id")) if file.is_file() else []


def _listed(stated: Any) -> list[Any]:
    return stated if isinstance(stated, list) else [] if stated is None else [stated]


def _eos_of_tokenizer(folder: Path) -> int | None:
    """The id of the token that ends a sequence; None where no JSON tells it."""
    file = folder / "tokenizer_config.json"
    token = read_json(file).get("eos_token") if file.is_file() else None
    text = token.get("content") if isinstance(token, dict) else token
    return (stored_token_ids(folder) or {}).get(text) if isinstance(text, str) else None
