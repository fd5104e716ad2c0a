"""Which tokens two vocabularies share, by their text, and how one model reads the tokens of another. No torch.

Token-level intersection (arXiv 2502.05202, algorithm 4; vLLM PR 38174, transformers' universal assisted decoding): a
draft model of another tokenizer drafts shared tokens alone. Two tokens are one if they stand for the same bytes: tokens
of byte-level vocabularies are read by their alphabet, those of SentencePiece by its mark of a space. Which tokens are
shared decides how many drafts are accepted, never what is emitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from harness.models.token_bytes import bytes_of_tokens, is_byte_piece


class SharedTokens(NamedTuple):
    """The tokens that a target and a draft model share."""

    target_ids: tuple[int, ...]
    """[S] increasing."""
    draft_ids: tuple[int, ...]
    """[S] the draft model's id of each of them."""
    read_as: tuple[int, ...]
    """[V] what the draft model reads for each id of the target: its own id of a shared token; of another one its
    longest token that ends it; its token for what is unknown where there is none."""

    def told(self, num_draft_rows: int) -> str:
        """The sentence for records and reports: how many tokens are shared, and what happens to the others.

        num_draft_rows: token ids of the draft model.
        """
        return (
            f"it shares {len(self.target_ids)} of the target's {len(self.read_as)} token ids, drafts no others of its "
            f"{num_draft_rows}, and reads the target's others as the longest of its tokens that end them"
        )


def shared_tokens(
    target: Mapping[str, int], num_target_rows: int, draft: Mapping[str, int], num_draft_rows: int, unknown: int = 0
) -> SharedTokens:
    """Match the tokens of two vocabularies.

    Args:
        target, draft: ids by token, as tokenizers have them.
        num_target_rows, num_draft_rows: ids from there on are left out.
        unknown: the draft model's id for what it has no token for.

    Raises:
        ValueError: no token is shared.
    """
    meanings = _meanings(target, num_target_rows)
    ours, theirs = _first_ids(meanings), _first_ids(_meanings(draft, num_draft_rows))
    pairs = sorted((number, theirs[text]) for text, number in ours.items() if text in theirs)
    if not pairs:
        raise ValueError(
            f"expected a draft model that shares tokens with the target, found none of its {len(theirs)} among the "
            f"target's {len(ours)}; choose another draft model"
        )
    read_as = [unknown] * num_target_rows
    for number, text in meanings.items():
        ends = (theirs.get(text[start:]) for start in range(len(text)))
        read_as[number] = next((found for found in ends if found is not None), unknown)
    target_ids, draft_ids = zip(*pairs, strict=True)
    return SharedTokens(target_ids, draft_ids, tuple(read_as))


def _meanings(token_ids: Mapping[str, int], num_rows: int) -> dict[int, bytes]:
    """What each id stands for, in the order of the ids; pieces for single bytes last, which text seldom needs."""
    meanings = bytes_of_tokens(token_ids)
    in_order = sorted((is_byte_piece(token), number) for token, number in token_ids.items())
    return {number: meanings[number] for _, number in in_order if number < num_rows}


def _first_ids(meanings: Mapping[int, bytes]) -> dict[bytes, int]:
    """The first id of each text."""
    found: dict[bytes, int] = {}
    for number, text in meanings.items():
        found.setdefault(text, number)
    return found
