"""Log-probabilities of a request's output tokens, where they were asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Columns with an entry for each output token; log-probabilities in nats.

    They are of the row that the token was drawn from, raw or processed as the cell's decoding.logprobs_mode says.
    """

    token: tuple[float | None, ...]
    """Of the token itself; None where it has no probability there."""
    rank: tuple[int, ...]
    """1 + the number of more probable tokens."""
    top_token_ids: tuple[tuple[int, ...], ...]
    """The most probable tokens of the row, the best first; fewer where no more have a probability."""
    top: tuple[tuple[float, ...], ...]
    """Theirs."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TokenLogprobs:
        """The columns from lists."""
        ids, top = (tuple(map(tuple, data[name])) for name in ("top_token_ids", "top"))
        return cls(tuple(data["token"]), tuple(data["rank"]), ids, top)
