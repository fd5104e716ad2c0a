"""The marker is one token, such as `</think>`."""

from __future__ import annotations

from collections.abc import Sequence

from harness.constraint.parsers.parser import ReasoningParser, State


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
