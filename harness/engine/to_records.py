"""Records of finished requests, made when the clock has stopped.

A record costs microseconds per round, and more where the end of reasoning is searched for: while the clock runs, that
would stall the rounds of every request in flight.
"""

from __future__ import annotations

from dataclasses import asdict, replace

from harness.constraint.reasoning_span import find_reasoning_span
from harness.engine.sequence import Sequence
from harness.engine.token_logprobs import unpacked_logprobs
from harness.records.acceptance_terms import RequestTerms
from harness.records.request import RequestRecord, RoundRecord


def request_record(sequence: Sequence) -> RequestRecord:
    """The record of a finished request."""
    request, num_reasoning = sequence.request, None
    assert sequence.finish_reason is not None
    if request.grammar_state is not None:
        num_reasoning = request.grammar_state.num_reasoning_tokens
        if num_reasoning is not None and num_reasoning > len(sequence.output_token_ids):
            # the request ended, at its length or an end of sequence, before the marker just seen
            num_reasoning = None
    record = RequestRecord(
        prompt_id=request.prompt_id,
        category=request.category,
        turn=request.turn,
        sample=request.sample,
        seed=request.seed,
        num_prompt_tokens=sequence.num_prompt_tokens,
        output_token_ids=tuple(sequence.output_token_ids),
        finish_reason=sequence.finish_reason,
        submitted_s=sequence.submitted_s,
        rounds=tuple(RoundRecord(**item._asdict()) for item in sequence.rounds),
        num_reasoning_tokens=num_reasoning,
        sampling=None if request.sampling is None else asdict(request.sampling),
        logprobs=unpacked_logprobs(sequence.logprobs, len(sequence.output_token_ids)) if sequence.logprobs else None,
    )
    is_searched = request.parser is not None and request.grammar_state is None
    return _with_reasoning_span(record, sequence) if is_searched else record


def _with_reasoning_span(record: RequestRecord, sequence: Sequence) -> RequestRecord:
    """The record with the end of reasoning and each round's tokens before it, of a request without a grammar."""
    assert sequence.request.parser is not None
    emitted, start = [], sequence.num_prompt_tokens
    for item in record.rounds:
        emitted.append(sequence.token_ids[start : start + item.num_output_tokens])
        start += item.num_output_tokens
    found = find_reasoning_span(sequence.request.parser, emitted, sequence.drafted)
    pairs = zip(record.rounds, found.num_free_tokens, strict=True)
    rounds = tuple(replace(item, num_free_tokens=free) for item, free in pairs)
    return replace(record, rounds=rounds, num_reasoning_tokens=found.num_reasoning_tokens)


def request_terms(sequence: Sequence) -> RequestTerms:
    """The recorded terms of a request's full drafts."""
    request = sequence.request
    return RequestTerms.of((request.prompt_id, request.turn, request.sample), sequence.terms)
