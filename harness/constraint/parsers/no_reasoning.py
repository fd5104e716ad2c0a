"""There is no reasoning: the answer begins with the first output token."""

from __future__ import annotations

from harness.constraint.parsers.parser import ReasoningParser, State


class NoReasoning(ReasoningParser):
    """The boundary lies in front of everything; whoever asks for an end in some tokens has asked too late."""

    def start(self) -> State:
        return 0

    def step(self, token_id: int, state: State) -> State | None:
        raise AssertionError("without reasoning no token is read")
