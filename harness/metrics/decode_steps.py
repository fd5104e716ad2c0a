"""The steps of a cell that read no prompt, from its rounds: decoding requests, emitted tokens and seconds.

Rounds that arrived at one moment are of one step, whose duration they share. Shapes: N rounds of such steps, P prompts.
This module knows records; it does not know settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.records.request import RequestRecord

MIN_SHARE = 0.99
"""Of a step's duration, that the rounds of a step without prompts share; the rest is rounding."""
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class DecodeRounds:
    """The rounds of the steps without prompts; fields [N]."""

    prompt: Integers
    """Row of the prompt."""
    size: Integers
    """Requests that decoded in the step."""
    num_tokens: Floats
    """That the round emitted."""
    seconds: Floats
    """Its share of the step's duration."""

    def by_prompt(self, values: Floats, num_prompts: int) -> Floats:
        """[P] sums of a value of each round."""
        return np.bincount(self.prompt, weights=values, minlength=num_prompts).astype(np.float64)

    def of_size(self, size: int) -> DecodeRounds:
        """The rounds of steps in which `size` requests decoded."""
        kept = self.size == size
        return DecodeRounds(self.prompt[kept], self.size[kept], self.num_tokens[kept], self.seconds[kept])


def decode_rounds(requests: Sequence[RequestRecord], rows: Mapping[str, int]) -> DecodeRounds:
    """The rounds of a cell whose rounds are known.

    Args:
        requests: of the cell.
        rows: row of each prompt. Requests of other prompts count in the size of a step and are then left out.
    """
    found = [
        (item.arrival_s, rows.get(request.prompt_id, -1), place == 0, item.num_output_tokens, item.share_s)
        for request in requests
        for place, item in enumerate(request.rounds)
    ]
    arrival, prompt, is_first, num_tokens, share_s = np.array(found, dtype=np.float64).reshape(-1, 5).T
    ends, step, num_rounds = np.unique(arrival, return_inverse=True, return_counts=True)
    # the first round of a request is drawn where its prompt ends; who reads a part of one takes a share without a round
    reads_prompts = np.bincount(step, weights=is_first) > 0
    reads_prompts |= np.bincount(step, weights=share_s) < MIN_SHARE * np.diff(ends, prepend=ends[:1])
    kept = ~reads_prompts[step] & (prompt >= 0)
    return DecodeRounds(prompt[kept].astype(np.int64), num_rounds[step][kept], num_tokens[kept], share_s[kept])
