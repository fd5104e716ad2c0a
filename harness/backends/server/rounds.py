"""Rounds of a request from what a server tells of its steps: cut where the output ends, as the local engine cuts.

Servers count drafts beyond the end of a request, and steps that draft nothing are not among those they tell. A drafted
token that was rejected cannot be seen: one that would have ended the request (an end of sequence, the end of a stop
string) counts as rejected here, where the local engine leaves it out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from harness.backends.server.reply import MalformedAnswer
from harness.records.counts import Arrival
from harness.records.request import CutReason, FinishReason, RoundRecord

_CUTS = {FinishReason.eos: CutReason.eos, FinishReason.stop: CutReason.stop}
INCONSISTENT = "the drafts that the server tells do not add up, by themselves or to the tokens of its answer"


@dataclass(frozen=True)
class Steps:
    """The steps of a request that had drafts, or all behind its prefill, in order."""

    drafted: tuple[int, ...] = ()
    """Draft tokens of each step."""
    accepted: tuple[int, ...] = ()
    """Accepted draft tokens of each step, those beyond the end of the request included."""
    is_complete: bool = False
    """Whether steps without drafts, but for the prefill's, are among them."""

    def __post_init__(self) -> None:
        pairs = zip(self.accepted, self.drafted, strict=False)
        if len(self.drafted) != len(self.accepted) or any(not 0 <= a <= d for a, d in pairs):
            raise MalformedAnswer("the server tells of steps that accept more than they drafted, or not of all of them")


@dataclass(frozen=True)
class Unsplit:
    """Draft tokens of a request whose steps, or tokens, are not told apart: it has no rounds, but others may."""

    num_draft_tokens: int


def rounds_of(
    arrivals: Sequence[Arrival],
    steps: Steps,
    max_new_tokens: int,
    finish_reason: FinishReason,
    submitted_s: float,
    clock: Callable[[float], float],
) -> tuple[RoundRecord, ...]:
    """The rounds of a request.

    Args:
        arrivals: of its output tokens.
        steps: as the server tells them.
        max_new_tokens: limit of the request; a lower one of the server shows where it ended for its length.
        finish_reason: why it ended.
        submitted_s: when it began.
        clock: time -> the request's share of the time up to there (`harness.records.in_flight`).

    Raises:
        MalformedAnswer: steps and tokens contradict each other.
    """
    total = sum(item.num_output_tokens for item in arrivals)
    limit = total if finish_reason is FinishReason.length else max_new_tokens
    ends = list(accumulate(item.num_output_tokens for item in arrivals))
    rounds, emitted, chunk, before = [], 0, 0, clock(submitted_s)
    for drafted, accepted in _ordered(arrivals, steps, total):
        allowed, given = limit - emitted, accepted + 1
        kept = min(given, total - emitted)
        cut = None
        if kept < given:
            cut = _CUTS.get(finish_reason, CutReason.length)
        evidence = min(drafted, max(0, allowed - 1))
        if cut in (CutReason.eos, CutReason.stop):
            evidence = min(evidence, kept - 1)
        emitted += kept
        while ends[chunk] < emitted:
            chunk += 1
        arrival_s = arrivals[chunk].arrival_s
        rounds.append(
            RoundRecord(
                num_proposed_tokens=drafted,
                num_draft_tokens=evidence,
                num_accepted_tokens=min(accepted, evidence),
                num_output_tokens=kept,
                cut_reason=cut,
                arrival_s=arrival_s,
                share_s=max(0.0, clock(arrival_s) - before),
                num_cut_tokens=given - kept,
            )
        )
        before = clock(arrival_s)
    return tuple(rounds)


def places_are_told(rounds: Sequence[RoundRecord]) -> bool:
    """Whether it is certain which rounds of a request had drafts; a rejected draft gives one token, as does none."""
    behind_prefill = rounds[1:]
    some_had_none = any(not item.num_proposed_tokens for item in behind_prefill)
    return not (some_had_none and any(item.num_proposed_tokens and item.num_output_tokens == 1 for item in rounds))


def _ordered(arrivals: Sequence[Arrival], steps: Steps, total: int) -> list[tuple[int, int]]:
    """(drafted, accepted) of every round, those without a draft among them where their tokens came."""
    pairs = list(zip(steps.drafted, steps.accepted, strict=True))
    if steps.is_complete:
        return [(0, 0), *pairs]
    num_single, by_chunk = _num_without_drafts(arrivals, steps, total)
    single = (0, 0)
    if not by_chunk:
        return [single] * num_single + pairs
    ordered, waiting = [single], pairs[::-1]
    for place, item in enumerate(arrivals[1:], 2):
        size = waiting[-1][1] + 1 if waiting else 0
        # the last step may have been cut
        is_cut = place == len(arrivals) and len(waiting) == 1 and item.num_output_tokens < size
        ordered.append(waiting.pop() if item.num_output_tokens == size or is_cut else single)
    if waiting:
        return [single] * num_single + pairs
    return ordered


def _num_without_drafts(arrivals: Sequence[Arrival], steps: Steps, total: int) -> tuple[int, bool]:
    """Rounds without drafts, the prefill's among them, and whether every round came in a chunk of its own."""
    from_drafts = sum(steps.accepted) + len(steps.accepted)
    max_cut = steps.accepted[-1] if steps.accepted else 0
    of_chunks = len(arrivals) - len(steps.accepted)
    # nothing cut and tokens of several rounds in one chunk is the last thing to believe
    for num_single, by_chunk in ((of_chunks, True), (1, False), (total - from_drafts, False)):
        if num_single >= 1 and 0 <= num_single + from_drafts - total <= max_cut:
            return num_single, by_chunk
    raise MalformedAnswer(INCONSISTENT)
