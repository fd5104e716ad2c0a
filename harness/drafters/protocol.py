"""What the engine and a drafter say to each other.

Letters: B rows of the batch (slots), T tokens per row in a target step, K draft tokens per round, H hidden size,
V_draft the drafter's vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from harness.models.target import TargetOutput
from kernels.contract import Draft, Sampling


@dataclass(frozen=True)
class TargetStep:
    """A target forward whose output tokens are known: what a drafter may learn from it."""

    rows: slice | Tensor
    """Slots of the batch: slice(0, B), or [B] int64."""
    token_ids: Tensor
    """[B, T] int64, what the target read."""
    next_ids: Tensor
    """[B, T] int64, the token that follows each of them; valid ids without a meaning beyond last_index."""
    positions: Tensor
    """[B, T] int64, absolute positions of token_ids."""
    last_index: Tensor
    """[B] int64, the last column whose next token is known."""
    output: TargetOutput
    """The target's hidden states at these positions."""
    length: int
    """Highest position + 1."""
    is_prefill: bool
    """The rows start at position 0."""


@dataclass(frozen=True)
class ProposalRequest:
    """The state of the batch for which K tokens are wanted."""

    num_rows: int
    """B; the rows are the slots 0..B - 1."""
    num_speculative_tokens: int
    """K."""
    sequences: Sequence[Sequence[int]]
    """Token ids of each row so far, on the host; empty for a row without a request."""
    sampling: Sampling
    """[B]."""
    seeds: Tensor
    """[B] int64."""
    positions: Tensor
    """[B] int64, position of the first draft token: the length of the sequence so far."""
    rounds: Tensor
    """[B] int64."""
    length: int
    """Highest position among the rows' sequences + 1."""


class Drafter(Protocol):
    """Proposes tokens. `extend` is called after every target step, `propose` once a round."""

    @property
    def aux_layers(self) -> tuple[int, ...]:
        """Target layers whose entering state the drafter reads; () for the final hidden state alone."""
        ...

    @property
    def num_parameters(self) -> int:
        """Parameters of the drafting network, without what it shares with the target."""
        ...

    @property
    def logit_cache_bytes(self) -> int:
        """Memory of the persistent draft-logit cache and of the row statistics kept beside it."""
        ...

    def extend(self, step: TargetStep) -> None:
        """Take in the tokens and states of a target step."""
        ...

    def propose(self, request: ProposalRequest) -> Draft:
        """Propose up to K tokens for rows 0..B - 1."""
        ...

    def clear(self, slot: int) -> None:
        """Forget everything about a slot whose request met NaN."""
        ...
