"""A language model that drafts for another one: loaded with the token ids that its target has, or with its own.

Rows beyond the target's vocabulary are left out, so that its distributions are over ids of the target from the start,
and what drafts are drawn from is what verification reads. With fewer rows it gives the other ids no probability. With
another tokenizer it keeps all of its rows, and knows which of them are tokens of the target too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.models.accounting import OF_DRAFTER, Accepted
from harness.models.checkpoint import named
from harness.models.decoder_layer import resized
from harness.models.random_target import Architecture, random_model
from harness.models.shared_tokens import SharedTokens, shared_tokens
from harness.models.target import TargetModel, load_target, read_config
from harness.models.token_ids import has_tokenizer, missing_ids
from harness.models.tokenizer import load_tokenizer
from harness.models.vocabulary import check_vocabulary


def load_draft_model(
    folder: Path, target: TargetModel, *, accepted: Accepted = OF_DRAFTER, shares_tokens: bool = False
) -> TargetModel:
    """Load a frozen draft model for a target.

    shares_tokens: whether it may have another tokenizer, and drafts the tokens that both have.
    Raises ValueError as load_target does, and for another vocabulary; of another tokenizer, where no token is shared.
    """
    config, _, _ = read_config(folder, False, accepted, names=None)
    tokenizer = load_tokenizer(folder) if has_tokenizer(folder) else None
    num_rows = config.get_text_config(decoder=True).vocab_size
    if shares_tokens:
        tokens = _shared_with(target, tokenizer, num_rows, folder)
        model = load_target(
            folder,
            device=target.device,
            dtype=target.dtype,
            name=folder.name,
            tokenizer=tokenizer,
            accepted=accepted,
        )
        model.shared_tokens = tokens
        model.assumptions += (tokens.told(num_rows),)
        return model
    assumed = check_vocabulary(num_rows, tokenizer, target, folder, is_model=True)
    model = load_target(
        folder,
        device=target.device,
        dtype=target.dtype,
        name=folder.name,
        tokenizer=tokenizer or target.tokenizer,
        most_ids=target.vocab_size,
        accepted=accepted,
    )
    return _for_target(model, config.vocab_size, target, assumed)


def _shared_with(target: TargetModel, tokenizer: Any, num_rows: int, folder: Path) -> SharedTokens:
    if tokenizer is None or target.tokenizer_stands_in:
        owner = str(folder) if tokenizer is None else f"target {target.name}"
        raise ValueError(
            f"drafter.vocabulary=shared: expected a tokenizer of both models, which says what their ids mean, found "
            f"none of {owner}"
        )
    ends = (getattr(tokenizer, name, None) for name in ("unk_token_id", "eos_token_id"))
    unknown = next((number for number in ends if number is not None and number < num_rows), 0)
    with named(folder):
        return shared_tokens(target.tokenizer.get_vocab(), target.vocab_size, tokenizer.get_vocab(), num_rows, unknown)


def random_draft_model(given: Architecture, name: str, target: TargetModel) -> TargetModel:
    """A draft model of given sizes with random weights; its tokens are the target's. Raises ValueError as
    `random_target` does, and for another vocabulary."""
    assumed = check_vocabulary(given.vocab_size, None, target, given.source)
    fitting = given._replace(config=resized(given.config, min(given.vocab_size, target.vocab_size)))
    model = random_model(
        fitting,
        "drafter",
        target.tokenizer,
        target.device,
        target.dtype,
        name,
        given.fields,
        tokenizer_stands_in=target.tokenizer_stands_in,
    )
    return _for_target(model, given.vocab_size, target, assumed)


def _for_target(model: TargetModel, num_rows: int, target: TargetModel, assumed: tuple[str, ...]) -> TargetModel:
    """The model, with what is told of its vocabulary; `num_rows`: of its file."""
    model.reads_unknown_ids = model.vocab_size < target.vocab_size
    model.assumptions += (*assumed, *missing_ids(num_rows, target.vocab_size))
    return model
