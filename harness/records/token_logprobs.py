"""The log-probabilities of a request's output tokens, which cannot be built inconsistent."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from harness.records import InconsistentRecordError
from harness.records.strict_json import Int64

LOGPROB_ROUNDING = 1e-3
"""By which float32 may lift the log-probability of a certain token above 0."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Columns with an entry for each output token; log-probabilities in nats.

    They are of the row that the token was drawn from, raw or processed as the cell's decoding.logprobs_mode says.
    """

    token: tuple[float | None, ...]
    """Of the token itself; None where it has no probability there."""
    rank: tuple[Int64, ...]
    """1 + the number of more probable tokens."""
    top_token_ids: tuple[tuple[Int64, ...], ...]
    """The most probable tokens of the row, the best first; fewer where no more have a probability."""
    top: tuple[tuple[float, ...], ...]
    """Theirs."""

    def __post_init__(self) -> None:
        lengths = [len(column) for column in (self.token, self.rank, self.top_token_ids, self.top)]
        if len(set(lengths)) != 1 or list(map(len, self.top_token_ids)) != list(map(len, self.top)):
            raise InconsistentRecordError(
                f"logprobs: expected an entry of each column for each token, and a value for each id, found {lengths}"
            )
        values = chain((value for value in self.token if value is not None), *self.top)
        wrong = [value for value in values if not value <= LOGPROB_ROUNDING]
        if wrong:
            raise InconsistentRecordError(f"logprobs: expected log-probabilities of 0 or less, found {wrong[0]}")
        if min(self.rank, default=1) < 1:
            raise InconsistentRecordError(f"logprobs: expected ranks of 1 or more, found {min(self.rank)}")
