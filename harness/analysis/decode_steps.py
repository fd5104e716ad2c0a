"""The steps of a cell in which requests decode, from its rounds: their number, emitted tokens and seconds.

Rounds that arrived at one moment are of one step, whose duration they share, with the prompts that it read too. Shapes:
N rounds of such steps, P prompts. This module knows records; it does not know settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from harness.records.request import RequestRecord

MIN_SHARE = 0.99
"""Of a step's duration, that the rounds of a step without prompts share; the rest is rounding."""
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class DecodeRounds:
    """The rounds of requests that decode, but for the first of each, which ends its prompt; fields [N]."""

    prompt: Integers
    """Row of the prompt."""
    size: Integers
    """Requests that decoded in the step."""
    reads_prompts: NDArray[np.bool_]
    """Whether the step read prompts too, or parts of some."""
    num_drafts: Integers
    """Draft tokens that the drafter produced for the round."""
    num_tokens: Floats
    """That the round emitted."""
    seconds: Floats
    """Its share of the step's duration, which the decoding requests share."""

    def by_prompt(self, values: Floats, num_prompts: int) -> Floats:
        """[P] sums of a value of each round."""
        return np.bincount(self.prompt, weights=values, minlength=num_prompts).astype(np.float64)

    def where(self, kept: NDArray[np.bool_]) -> DecodeRounds:
        """Some of the rounds."""
        return DecodeRounds(*(getattr(self, field.name)[kept] for field in fields(self)))


def decode_rounds(requests: Sequence[RequestRecord], rows: Mapping[str, int]) -> DecodeRounds:
    """The rounds of a cell whose rounds are known.

    Args:
        requests: of the cell.
        rows: row of each prompt. Requests of other prompts count in the size of a step and are then left out.
    """
    found = [
        (
            *(item.arrival_s, rows.get(request.prompt_id, -1), place == 0),
            *(item.num_proposed_tokens, item.num_output_tokens, item.share_s),
        )
        for request in requests
        for place, item in enumerate(request.rounds)
    ]
    arrival, prompt, is_first, num_drafts, num_tokens, share_s = np.array(found, dtype=np.float64).reshape(-1, 6).T
    ends, step, num_rounds = np.unique(arrival, return_inverse=True, return_counts=True)
    # the first round of a request is drawn where its prompt ends; who reads a part of one takes a share without a round
    num_first, took_s = np.bincount(step, weights=is_first), np.diff(ends, prepend=ends[:1])
    reads_prompts = (num_first > 0) | (np.bincount(step, weights=share_s) < MIN_SHARE * took_s)
    num_decoding = num_rounds - num_first.astype(np.int64)
    seconds = np.where(reads_prompts[step], took_s[step] / np.maximum(num_decoding, 1)[step], share_s)
    found_all = DecodeRounds(
        *(prompt.astype(np.int64), num_decoding[step], reads_prompts[step]),
        *(num_drafts.astype(np.int64), num_tokens, seconds),
    )
    return found_all.where((is_first == 0) & (prompt >= 0))
