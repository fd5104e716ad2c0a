"""A language model that drafts for another one: loaded with the token ids that its target has.

Rows beyond the target's vocabulary are left out, so that its distributions are over ids of the target from the start,
and what drafts are drawn from is what verification reads. With fewer rows it gives the other ids no probability.
"""

from __future__ import annotations

from pathlib import Path

from harness.models.accounting import OF_DRAFTER, Accepted
from harness.models.decoder_layer import resized
from harness.models.random_target import Architecture, random_model
from harness.models.target import TargetModel, load_target, read_config
from harness.models.token_ids import has_tokenizer, missing_ids
from harness.models.tokenizer import load_tokenizer
from harness.models.vocabulary import check_vocabulary


def load_draft_model(folder: Path, target: TargetModel, *, accepted: Accepted = OF_DRAFTER) -> TargetModel:
    """Load a frozen draft model for a target. Raises ValueError as load_target does, and for another vocabulary."""
    config, _, _ = read_config(folder, False, accepted, names=None)
    tokenizer = load_tokenizer(folder) if has_tokenizer(folder) else None
    num_rows = config.get_text_config(decoder=True).vocab_size
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
