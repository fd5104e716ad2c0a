"""Grammars over a handful of tokens, as finite automata; and grammar states over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from harness.config.constraint import AnswerDrafts, constraint_of
from harness.engine.constraint.grammar_state import GrammarState
from harness.engine.constraint.matcher import Matcher
from harness.engine.constraint.parsers.markers import OneToken
from harness.engine.constraint.parsers.parser import ReasoningParser

MARKER = 3
END = "end"
"""The state in which an answer is whole and nothing follows."""
Automaton = Mapping[str, Mapping[int, str]]

ANSWERS: Automaton = {
    # tokens 0 to 2, and the marker as an ordinary token in one place; every answer ends
    "start": {0: "one", 1: "two"},
    "one": {1: "two", 2: END, MARKER: "two"},
    "two": {0: END, 2: END},
}


def chain(token_ids: Sequence[int]) -> Automaton:
    """The grammar of one answer."""
    states = ["start", *(f"after {number}" for number in range(1, len(token_ids))), END]
    return {
        state: {token: states[index + 1]} for index, (state, token) in enumerate(zip(states, token_ids, strict=False))
    }


class ToyMatcher(Matcher):
    """See harness.engine.constraint.masks.Matcher; it also remembers what it was fed."""

    def __init__(self, automaton: Automaton = ANSWERS) -> None:
        self.automaton = automaton
        self.states = ["start"]
        self.fed: list[int] = []

    @property
    def is_complete(self) -> bool:
        return self.states[-1] == END

    @property
    def allowed(self) -> Mapping[int, str]:
        return self.automaton.get(self.states[-1], {})

    def accept(self, token_ids: Sequence[int]) -> int:
        for number, token_id in enumerate(token_ids):
            if token_id not in self.allowed:
                return number
            self.states.append(self.allowed[token_id])
            self.fed.append(token_id)
        return len(token_ids)

    def rollback(self, num_tokens: int) -> None:
        assert num_tokens < len(self.states), "more is taken back than was accepted"
        del self.states[len(self.states) - num_tokens :], self.fed[len(self.fed) - num_tokens :]

    def fill(self, words: Tensor) -> None:
        words[0] = sum(1 << token_id for token_id in self.allowed)


def grammar_state_of(
    policy: str, automaton: Automaton = ANSWERS, parser: ReasoningParser | None = None, masks_drafts: bool = True
) -> GrammarState:
    """A grammar state over a toy grammar; reasoning ends at MARKER unless a parser is given."""
    drafts = AnswerDrafts.masked if masks_drafts else AnswerDrafts.free
    return GrammarState(parser or OneToken(MARKER), ToyMatcher(automaton), constraint_of(policy, drafts=drafts))
