"""The end of reasoning and the validity of a cell's answers; follows no grammar, so it needs no grammar library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.config.constraint import AnswerConfig
from harness.engine.constraint.registry import build_parser
from harness.engine.constraint.validity import check_validator, is_valid
from harness.records.request import StopFound
from harness.workload.chat import decode_answer


class AnswerCheck:
    """What is asked of the answers of one cell."""

    def __init__(self, config: AnswerConfig, tokenizer: Any) -> None:
        """
        Args:
            config: the policy.
            tokenizer: the target's, of transformers.

        Raises:
            ValueError: the tokenizer lacks the marker, or what validates answers is not installed.
        """
        check_validator(config.kind)
        self.config = config
        self.parser = build_parser(config.parser, tokenizer)
        self._tokenizer = tokenizer

    def grammar(self, prompt_id: str, schema: str | None) -> str:
        """The grammar of a prompt's answer; raises ValueError when there is none."""
        return grammar_of(self.config, prompt_id, schema)

    def validate(self, grammar: str, answer_ids: Sequence[int], stop: StopFound | None = None) -> bool | None:
        """Whether an answer, up to its stop string if it has one, is valid; None where no validator exists."""
        return is_valid(self.config.kind, grammar, decode_answer(self._tokenizer, answer_ids, stop))


def grammar_of(config: AnswerConfig, prompt_id: str, schema: str | None) -> str:
    """The grammar of a prompt's answer; raises ValueError when there is none."""
    found = schema if config.grammar is None else config.grammar
    if found is None:
        raise ValueError(
            f"prompt {prompt_id}: expected a JSON schema, found none; take a workload with schemas "
            "(workload=reasoning_json), or give constraint.grammar"
        )
    return found
