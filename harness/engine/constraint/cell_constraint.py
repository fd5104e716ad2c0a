"""The constraint of a cell: a parser and a grammar for each request, and validation at its end."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from harness.config.constraint import AnswerConfig, GrammarConfig
from harness.engine.constraint.answer_check import AnswerCheck
from harness.engine.constraint.grammar import GrammarCompiler
from harness.engine.constraint.grammar_state import GrammarState
from harness.engine.constraint.grammar_text import UnusableGrammarError, refusal
from harness.engine.constraint.parsers.parser import ReasoningParser


class RequestConstraint(NamedTuple):
    """The constraint of one request: a grammar state, or without a grammar the parser."""

    grammar_state: GrammarState | None
    parser: ReasoningParser | None


class CellConstraint(AnswerCheck):
    """The constraint of one cell."""

    def __init__(self, config: AnswerConfig, tokenizer: Any, vocab_size: int, eos_token_ids: Collection[int]) -> None:
        """
        Args:
            config: the policy.
            tokenizer: the target's, of transformers.
            vocab_size: rows of the target's output matrix.
            eos_token_ids: tokens that end an answer.

        Raises:
            ValueError: the tokenizer lacks the marker, what validates answers is not installed, or the grammar of every
                answer cannot be followed.
        """
        super().__init__(config, tokenizer)
        self._compiler = GrammarCompiler(tokenizer, vocab_size, eos_token_ids)
        if config.grammar is not None:
            try:
                self._compiler.matcher(config.kind, config.grammar)
            except UnusableGrammarError as error:
                raise refusal(config.grammar, error) from error

    def request_constraint(self, grammar: str) -> RequestConstraint:
        """The constraint of a request. Its grammar must be usable, also under policy `none`.

        Raises:
            UnusableGrammarError: the grammar cannot be followed.
        """
        matcher = self._compiler.matcher(self.config.kind, grammar)
        if not isinstance(self.config, GrammarConfig):
            return RequestConstraint(None, self.parser)
        return RequestConstraint(GrammarState(self.parser, matcher, self.config), None)
