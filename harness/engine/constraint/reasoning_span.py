"""The end of reasoning of a request without a policy, found after the run.

Nothing is searched while requests run, so that policy `none` is a reference of speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from harness.engine.constraint.parsers.parser import ReasoningParser


class ReasoningSpan(NamedTuple):
    """One request."""

    num_reasoning_tokens: int | None
    """Output tokens up to the end of reasoning; None where it never ended."""
    num_free_tokens: list[int]
    """Of each round, draft tokens up to the end of reasoning."""


def find_reasoning_span(
    parser: ReasoningParser, emitted: Sequence[Sequence[int]], drafted: Sequence[Sequence[int]]
) -> ReasoningSpan:
    """Find the end of reasoning of a request.

    Args:
        parser: where its reasoning ends.
        emitted: the output tokens of each round.
        drafted: the draft tokens of each round.
    """
    state = parser.start()
    num_reasoning, num_tokens = (0 if state is None else None), 0
    num_free = []
    for tokens, drafts in zip(emitted, drafted, strict=True):
        if state is None:
            num_free.append(0)
            continue
        end = parser.end_index_in(drafts, state)
        num_free.append(len(drafts) if end is None else end + 1)
        end = parser.end_index_in(tokens, state)
        if end is not None:
            num_reasoning = num_tokens + end + 1
        state = parser.after(tokens, state) if end is None else None
        num_tokens += len(tokens)
    return ReasoningSpan(num_reasoning, num_free)
