"""Where the reasoning of a served answer ended, and whether the rest is valid, seen from outside of the server."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from harness.engine.constraint.answer_check import AnswerCheck
from harness.engine.constraint.reasoning_span import find_reasoning_span
from harness.records.request import RequestRecord

UNKNOWN_DRAFT = -2
"""Stands for a draft token that was rejected, which no server tells; no token and no marker has this id."""


def with_reasoning(record: RequestRecord, check: AnswerCheck, grammar: str) -> RequestRecord:
    """The record with its end of reasoning, each round's draft tokens before it, and the validator's verdict.

    Args:
        record: with the ids of its tokens; without them nothing can be found, and it stays as it is.
        check: of its cell.
        grammar: of its answer.
    """
    if not record.output_token_ids:
        return record
    emitted, drafted, start = [], [], 0
    for item in record.events:
        emitted.append(record.output_token_ids[start : start + item.num_output_tokens])
        start += item.num_output_tokens
    for item, tokens in zip(record.rounds, emitted, strict=False):
        accepted = tokens[: item.num_accepted_tokens]
        drafted.append((*accepted, *(UNKNOWN_DRAFT,) * (item.num_proposed_tokens - len(accepted))))
    found = find_reasoning_span(check.parser, emitted, drafted or [()] * len(emitted))
    end = found.num_reasoning_tokens
    free = zip(record.rounds, found.num_free_tokens, strict=False)
    return replace(
        record,
        rounds=tuple(structs.replace(item, num_free_tokens=number) for item, number in free),
        num_reasoning_tokens=end,
        answer_is_valid=None if end is None else check.validate(grammar, record.output_token_ids[end:], record.stop),
    )
