"""There is no reasoning: the answer begins with the first output token."""

from __future__ import annotations

from harness.constraint.parsers.parser import ReasoningParser, State


class NoReasoning(ReasoningParser):
    """The boundary lies in front of everything."""

    def start(self) -> State | None:
        return None

    def step(self, token_id: int, state: State) -> State | None:
        raise AssertionError("without reasoning no token is read")
