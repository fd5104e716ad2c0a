"""Records of finished requests, made when the clock has stopped.

A record costs microseconds per round, and more where the end of reasoning is searched for: while the clock runs, that
would stall the rounds of every request in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

from msgspec import structs

from harness.engine.constraint.reasoning_span import find_reasoning_span
from harness.engine.sequence import Sequence
from harness.engine.token_logprobs import unpacked_logprobs
from harness.records.acceptance_terms import DraftTerms, RequestTerms
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
        rounds=tuple(RoundRecord(*item) for item in sequence.rounds),
        num_reasoning_tokens=num_reasoning,
        sampling=None if request.sampling is None else request.sampling.recorded,
        logprobs=unpacked_logprobs(sequence.logprobs, len(sequence.output_token_ids)) if sequence.logprobs else None,
        stop=sequence.stop,
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
    rounds = tuple(structs.replace(item, num_free_tokens=free) for item, free in pairs)
    return replace(record, rounds=rounds, num_reasoning_tokens=found.num_reasoning_tokens)


def request_terms(sequence: Sequence) -> RequestTerms:
    """The recorded terms of a request's full drafts."""
    request = sequence.request
    drafts = [DraftTerms(index, values) for index, values in sequence.terms.items()]
    return RequestTerms.of((request.prompt_id, request.turn, request.sample), drafts)


@dataclass(frozen=True)
class EngineRun:
    """The requests in the order they finished, and how long it took."""

    requests: tuple[RequestRecord, ...]
    """Without those that were handed over early."""
    wall_s: float
    """From the first admission until the device is idle, without the time in which the clock stood."""
    num_invalid: int
    """Verifications that met a row without a distribution, or a draft token its distribution cannot have produced."""
    terms: tuple[RequestTerms, ...] = ()
    """Of the requests, in the same order; empty unless they are recorded."""
    idle_s: float = 0.0
    """Time in which the engine waited for requests to arrive, which none of them is charged with."""


class Keeping(NamedTuple):
    """Who gets finished requests while others go on."""

    every_s: float
    """Seconds of the clock between two calls, at least."""
    keep: Callable[[EngineRun], None]
    """Called with the requests that have finished since the last call, between two steps, while the clock stands; once
    more when the run is interrupted."""


class Finished:
    """The requests of a run that have finished; those that were handed over early are forgotten."""

    def __init__(self, with_terms: bool, keeping: Keeping | None, start_s: float, complete: Callable[[], None]) -> None:
        """complete: called before records are made; gives the requests what is not yet known of their rounds. It may be
        called again after it was interrupted."""
        self.sequences: list[Sequence] = []
        """In the order they finished."""
        self._with_terms, self._keeping, self._complete = with_terms, keeping, complete
        self.idle_s = 0.0
        """Since requests were last handed over."""
        self._kept_s = start_s

    def is_due(self, now_s: float) -> bool:
        """Whether it is time to hand over."""
        return self._keeping is not None and now_s - self._kept_s >= self._keeping.every_s

    def keep(self, now_s: float) -> None:
        """Hand over what has finished since the last time; once, also where that is interrupted."""
        assert self._keeping is not None
        self._complete()
        sequences, self.sequences, self._kept_s = self.sequences, [], now_s
        idle_s, self.idle_s = self.idle_s, 0.0
        self._keeping.keep(replace(self._run(sequences), idle_s=idle_s))

    @contextmanager
    def kept_on_interruption(self) -> Iterator[None]:
        """Hand over the rest if the user or the system ends the run; an error is not one."""
        try:
            yield
        except BaseException as error:
            if self._keeping is not None and not isinstance(error, Exception):
                self.keep(self._kept_s)
            raise

    def results(self, wall_s: float, num_invalid: int) -> EngineRun:
        """All that was not handed over."""
        self._complete()
        return self._run(self.sequences, wall_s, num_invalid)

    def _run(self, sequences: list[Sequence], wall_s: float = 0.0, num_invalid: int = 0) -> EngineRun:
        terms = tuple(map(request_terms, sequences)) if self._with_terms else ()
        return EngineRun(tuple(map(request_record, sequences)), wall_s, num_invalid, terms)
