"""No grammar: the reference of speed. After a request the end of its reasoning is found and its answer validated."""

from __future__ import annotations

from dataclasses import dataclass

from harness.config.constraint import AnswerConfig


@dataclass(frozen=True)
class NoGrammar(AnswerConfig):
    """Looks at the answer after the run."""
