"""Parsers of plain markers: none, one token such as `</think>`, the first of some tokens, or several tokens."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from harness.engine.constraint.parsers.parser import ReasoningParser, State


class NoReasoning(ReasoningParser):
    """The answer begins with the first output token."""

    def start(self) -> State | None:
        return None

    def step(self, token_id: int, state: State) -> State | None:
        raise AssertionError("without reasoning no token is read")


class OneToken(ReasoningParser):
    """Reasoning ends at the first occurrence of one token; there is nothing to remember."""

    def __init__(self, marker_id: int) -> None:
        self.marker_id = marker_id

    @property
    def ending(self) -> tuple[int, ...]:
        return (self.marker_id,)

    def start(self) -> State:
        return 0

    def step(self, token_id: int, state: State) -> State | None:
        return None if token_id == self.marker_id else state

    def may_end_in(self, delta: Sequence[int]) -> bool:
        return self.marker_id in delta

    def end_index_in(self, delta: Sequence[int], state: State) -> int | None:
        return delta.index(self.marker_id) if self.marker_id in delta else None

    def after(self, delta: Sequence[int], state: State) -> State:
        return state


class AnyToken(ReasoningParser):
    """Reasoning ends at the first of some tokens, such as `</think>` and `<tool_call>`; there is nothing to remember.

    No token ends every reasoning, so that on a GPU the host sees every draft first.
    """

    def __init__(self, marker_ids: Collection[int]) -> None:
        self.marker_ids = frozenset(marker_ids)

    def start(self) -> State:
        return 0

    def step(self, token_id: int, state: State) -> State | None:
        return None if token_id in self.marker_ids else state

    def may_end_in(self, delta: Sequence[int]) -> bool:
        return not self.marker_ids.isdisjoint(delta)

    def after(self, delta: Sequence[int], state: State) -> State:
        return state


class SeveralTokens(ReasoningParser):
    """Reasoning ends at the first occurrence of a sequence of tokens, which rounds may split in every possible way.

    The state is the number of the marker's tokens that the last tokens match: the automaton of Knuth, Morris and Pratt
    ("Fast pattern matching in strings", 1977), so that a marker is found too where a false start runs into it.
    """

    def __init__(self, marker_ids: Sequence[int]) -> None:
        """Raises ValueError when the marker is empty."""
        if not marker_ids:
            raise ValueError("an end-of-reasoning marker: expected at least one token, found none")
        self.marker_ids = tuple(marker_ids)
        self._borders = _borders(self.marker_ids)

    @property
    def ending(self) -> tuple[int, ...]:
        return self.marker_ids

    def start(self) -> State:
        return 0

    def step(self, token_id: int, state: State) -> State | None:
        assert isinstance(state, int)
        while state and token_id != self.marker_ids[state]:
            state = self._borders[state - 1]
        state += token_id == self.marker_ids[state]
        return None if state == len(self.marker_ids) else state

    def may_end_in(self, delta: Sequence[int]) -> bool:
        return self.marker_ids[-1] in delta


def _borders(marker_ids: tuple[int, ...]) -> list[int]:
    """For each prefix of the marker the length of the longest shorter prefix that it ends with."""
    borders, length = [0], 0
    for token_id in marker_ids[1:]:
        while length and token_id != marker_ids[length]:
            length = borders[length - 1]
        length += token_id == marker_ids[length]
        borders.append(length)
    return borders
