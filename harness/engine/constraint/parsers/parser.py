"""What a reasoning parser is: it finds the token that completes the end-of-reasoning marker, round by round.

A parser sees the tokens of one round and a small state of its own, never the sequence so far: a round costs
O(tokens of the round) at any length of the context. The parser itself never changes; the state is a value that the
caller keeps, so that drafts can be looked at before it is known which of them stay.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence

State = Hashable
"""What a parser remembers between rounds: a number or a small tuple."""


class ReasoningParser(ABC):
    """Finds the end of reasoning. A new kind writes `start`, `step` and, where it can, `ending` and a cheaper
    `may_end_in`."""

    @property
    def ending(self) -> tuple[int, ...]:
        """Tokens that every end of reasoning ends with, so that a device can tell rounds that cannot hold one.

        They may stand elsewhere too. Empty where there are no such tokens: the host then sees every draft first.
        """
        return ()

    @abstractmethod
    def start(self) -> State | None:
        """The state before the first output token; None when there is no reasoning."""

    @abstractmethod
    def step(self, token_id: int, state: State) -> State | None:
        """The state after one more token; None when this token completes the marker."""

    def may_end_in(self, delta: Sequence[int]) -> bool:
        """Whether reasoning may end in these tokens; True without reason costs time, False must be certain."""
        return bool(delta)

    def end_index_in(self, delta: Sequence[int], state: State) -> int | None:
        """Index of the token that completes the marker; None when reasoning goes on after all of them.

        Args:
            delta: tokens that follow those that led to `state`.
            state: from `start` or `after`.
        """
        for index, token_id in enumerate(delta):
            next_state = self.step(token_id, state)
            if next_state is None:
                return index
            state = next_state
        return None

    def after(self, delta: Sequence[int], state: State) -> State:
        """The state after tokens in which reasoning does not end."""
        for token_id in delta:
            next_state = self.step(token_id, state)
            assert next_state is not None, "reasoning ends in these tokens: there is no state after them"
            state = next_state
        return state
