"""The vocabulary of a drafter beside its target's, compared when it is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.models.checkpoint import named
from harness.models.target import TargetModel
from harness.models.token_ids import TOKENIZER, Vocabulary, compared, has_tokenizer
from harness.models.tokenizer import load_own_tokenizer, load_tokenizer


def check_head_vocabulary(num_rows: int, folder: Path | None, target: TargetModel, source: object) -> tuple[str, ...]:
    """Compare a head's vocabulary with its target's.

    Args:
        num_rows: of its vocabulary, by its configuration.
        folder: whose tokenizer is compared, if it has one; None compares sizes alone.
        source: names the configuration in errors.

    Returns:
        What is taken for granted, one sentence each.

    Raises:
        ValueError: ids mean something else, or it cannot be told that they mean the same.
    """
    tokenizer = None
    if folder is not None and (folder / TOKENIZER).is_file():
        # that of a head may be of a model type that transformers does not know
        tokenizer = load_own_tokenizer(folder)
    elif folder is not None and has_tokenizer(folder):
        tokenizer = load_tokenizer(folder)
    return check_vocabulary(num_rows, tokenizer, target, source)


def check_vocabulary(
    num_rows: int, tokenizer: Any | None, target: TargetModel, source: object, *, is_model: bool = False
) -> tuple[str, ...]:
    """The same for a tokenizer that is loaded; None for none. is_model: see `compared` of token_ids."""
    ours = Vocabulary(target.vocab_size, None if target.tokenizer_stands_in else target.tokenizer.get_vocab())
    theirs = Vocabulary(num_rows, None if tokenizer is None else tokenizer.get_vocab())
    with named(source):
        return compared(ours, theirs, target.name, is_model)
