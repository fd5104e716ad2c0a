"""The kinds of parsers that are timed, and a control that copies the history."""

from __future__ import annotations

from collections.abc import Sequence

from harness.constraint.parsers.markers import OneToken, SeveralTokens
from harness.constraint.parsers.outside_code_block import OutsideCodeBlock
from harness.constraint.parsers.parser import ReasoningParser, State

MARKER = (1, 2, 3)
FENCE = 4
CONTROL = "control: copies the history"
FIRST_OTHER = 5
"""Ids from here on are neither of a marker nor of a fence."""


class CopiedHistory(ReasoningParser):
    """Control: keeps the sequence, and searches a copy of it in every round."""

    def start(self) -> State:
        return ()

    def step(self, token_id: int, state: State) -> State | None:
        raise AssertionError("it looks at the whole sequence")

    def end_index_in(self, delta: Sequence[int], state: State) -> int | None:
        assert isinstance(state, tuple)
        history = [*state, *delta]
        return history.index(MARKER[0]) - len(state) if MARKER[0] in history else None

    def after(self, delta: Sequence[int], state: State) -> State:
        assert isinstance(state, tuple)
        return (*state, *delta)


PARSERS: dict[str, ReasoningParser] = {
    "one token": OneToken(MARKER[0]),
    "several tokens": SeveralTokens(MARKER),
    "outside of a code block": OutsideCodeBlock(OneToken(MARKER[0]), {FENCE: "```"}),
    CONTROL: CopiedHistory(),
}
