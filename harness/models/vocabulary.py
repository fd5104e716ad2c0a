"""Whether a drafter speaks its target's language: vocabulary sizes and tokenizers are compared token by token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.models.target import TargetModel
from harness.models.tokenizer import has_tokenizer, load_own_tokenizer, load_tokenizer


def check_vocab_size(found: int, target: TargetModel, source: object) -> None:
    """Raise ValueError when a drafter's configuration names another vocabulary size than the target's."""
    if found != target.vocab_size:
        raise ValueError(
            f"{source}: expected vocab_size {target.vocab_size}, that of target {target.name}, found {found}; "
            f"the drafter was made for another target"
        )


def check_folder_tokenizer(folder: Path, target: TargetModel) -> None:
    """Compare the tokenizer that lies in a drafter's folder, if there is one, with the target's."""
    if (folder / "tokenizer.json").is_file():
        # that of a head may be of a model type that transformers does not know
        check_same_tokenizer(load_own_tokenizer(folder), target, folder)
    elif has_tokenizer(folder):
        check_same_tokenizer(load_tokenizer(folder), target, folder)


def check_same_tokenizer(tokenizer: Any, target: TargetModel, source: object) -> None:
    """Raise ValueError when a drafter's tokenizer maps any token to another id than the target's does.

    A target whose tokenizer only stands in has nothing to compare with: its tokens have no meaning.
    """
    if target.tokenizer_stands_in:
        return
    ours, theirs = target.tokenizer.get_vocab(), tokenizer.get_vocab()
    if ours == theirs:
        return
    differing = sorted(token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token))
    token = differing[0]
    raise ValueError(
        f"{source}: expected the tokenizer of target {target.name} ({len(ours)} tokens), found one with "
        f"{len(theirs)} tokens that differs in {len(differing)}, for example {token!r}: id {ours.get(token)} in the "
        f"target, {theirs.get(token)} in the drafter; choose a drafter with the target's tokenizer"
    )


def check_draft_model(draft_model: TargetModel, target: TargetModel) -> None:
    """Raise ValueError unless an independent draft model has the target's vocabulary."""
    source = draft_model.path or draft_model.name
    check_vocab_size(draft_model.vocab_size, target, source)
    check_same_tokenizer(draft_model.tokenizer, target, source)
