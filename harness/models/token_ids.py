"""Whether token ids mean the same to a drafter as to its target, and how their vocabularies may differ. JSON only.

Ids decide: tokenizers may differ in which ids they have, but none may mean something else. Rows of a drafter beyond the
target's are never drafted, and ids that it does not have have draft probability 0. A drafter without a tokenizer may
differ by padding alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harness.records.strict_json import parse_json

TOKENIZER = "tokenizer.json"
TOKENIZER_FILES = (TOKENIZER, "tokenizer.model", "vocab.json")
MOST_PADDING = 512
"""Rows by which the vocabularies of a pair of models may differ where no tokenizer tells their ids apart: checkpoints
are padded to multiples of up to so many."""
_NUM_SHOWN = 3


class Vocabulary(NamedTuple):
    """The token ids of one model."""

    num_rows: int
    """Of its embedding and its output matrix."""
    token_ids: Mapping[str, int] | None
    """By token, as its tokenizer has them; None where it has no tokenizer, or one that only stands in."""


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder holds a tokenizer."""
    return any((folder / file).is_file() for file in TOKENIZER_FILES)


def stored_token_ids(folder: Path) -> dict[str, int] | None:
    """The ids of a tokenizer.json; None where none can be read: the loader says what is wrong."""
    try:
        fields = parse_json((folder / TOKENIZER).read_bytes())
        pieces = fields["model"]["vocab"]
        if isinstance(pieces, list):
            # of Unigram, with their scores
            pieces = {piece: number for number, (piece, _) in enumerate(pieces)}
        found = dict(pieces)
        found |= {added["content"]: added["id"] for added in fields.get("added_tokens") or ()}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if all(type(number) is int for number in found.values()) else None


def compared(target: Vocabulary, drafter: Vocabulary, name: str, is_model: bool = False) -> tuple[str, ...]:
    """Compare a drafter's vocabulary with its target's.

    Args:
        name: of the target, in errors.
        is_model: whether the drafter is a language model, which should have a tokenizer of its own; heads seldom do.

    Returns:
        What is taken for granted, one sentence each.

    Raises:
        ValueError: ids mean something else, or it cannot be told that they mean the same.
    """
    if target.token_ids is not None and drafter.token_ids is not None:
        _check_meanings(target.token_ids, drafter.token_ids, name, is_model)
        return ()
    difference = abs(drafter.num_rows - target.num_rows)
    num_known = 0 if target.token_ids is None else 1 + max(target.token_ids.values(), default=-1)
    if difference and (difference > MOST_PADDING or drafter.num_rows < num_known):
        raise ValueError(
            f"expected vocab_size {target.num_rows}, that of target {name}, found {drafter.num_rows}, and no tokenizer "
            f"beside it that gives its ids their meaning; the drafter was made for another target, choose one for this"
        )
    if difference:
        return (
            f"it has no tokenizer to compare, and its {drafter.num_rows} token ids are taken for the target's "
            f"{target.num_rows} but for padding",
        )
    has_none = is_model and drafter.token_ids is None
    return ("it has no tokenizer of its own, and its token ids are taken for the target's",) if has_none else ()


def missing_ids(
    num_rows: int, num_target_rows: int, *, are_drafted: bool = False, are_read: bool = True
) -> tuple[str, ...]:
    """What becomes of ids that only one of the two has a row for, one sentence; () with as many rows.

    Args:
        are_drafted: whether an output matrix of the target proposes them all the same.
        are_read: whether the drafter has an embedding of its own, which they need.
    """
    if num_rows > num_target_rows:
        return (f"it has {num_rows} rows for the target's {num_target_rows} token ids, and never drafts those beyond",)
    if num_rows == num_target_rows or (are_drafted and not are_read):
        return ()
    done = ["never drafts the others"] * (not are_drafted) + [f"reads the others as {num_rows - 1}"] * are_read
    return (f"it has {num_rows} of the target's {num_target_rows} token ids, and {', and '.join(done)}",)


def _check_meanings(ours: Mapping[str, int], theirs: Mapping[str, int], name: str, is_model: bool) -> None:
    meanings = {number: token for token, number in ours.items()}
    differing = sorted(
        (number, token)
        for token, number in theirs.items()
        if (ours[token] != number if token in ours else number in meanings)
    )
    if differing:
        shown = "; ".join(_difference(number, token, ours, meanings) for number, token in differing[:_NUM_SHOWN])
        more = "; ..." if len(differing) > _NUM_SHOWN else ""
        raise ValueError(
            f"expected token ids that mean what they mean to target {name}, found {len(differing)} that do not: "
            f"{shown}{more}; choose a drafter with the target's tokenizer"
            + (", or draft the tokens that both have by drafter.vocabulary=shared" if is_model else "")
        )


def _difference(number: int, token: str, ours: Mapping[str, int], meanings: Mapping[int, Any]) -> str:
    here = f"{meanings[number]!r} in the target" if number in meanings else f"{ours[token]} in the target"
    return f"{number} is {token!r} in the drafter and {here}"
