"""From answers to records: rounds where every step is known, else arrivals, with counts where these are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from harness.backends.server.adapter import Adapter
from harness.backends.server.answer_reasoning import with_reasoning
from harness.backends.server.load_result import Answered, LoadResult
from harness.backends.server.reply import MalformedAnswer
from harness.backends.server.rounds import INCONSISTENT, Steps, Unsplit, rounds_of
from harness.engine.constraint.answer_check import AnswerCheck
from harness.records import InconsistentRecordError
from harness.records.counts import DraftCounts, Knowledge
from harness.records.request import FinishReason, RequestRecord
from harness.records.schema import Failure

FINISH = {"stop": FinishReason.eos, "length": FinishReason.length}
_CONTRADICTIONS = (MalformedAnswer, InconsistentRecordError)

_Told: TypeAlias = tuple[Answered, Steps | DraftCounts | Unsplit | None]


@dataclass(frozen=True)
class Recorded:
    """The records of some answers."""

    requests: tuple[RequestRecord, ...]
    knowledge: Knowledge | None
    """What all of them tell by themselves of their drafts; None where some tell nothing."""
    num_drafted: int
    """Draft tokens that they tell of."""
    failures: tuple[Failure, ...]


def recorded(
    played: LoadResult,
    adapter: Adapter,
    max_new_tokens: int,
    check: AnswerCheck | None = None,
    known: Knowledge | None = None,
    counts: DraftCounts | None = None,
) -> Recorded:
    """Turn answers into records; one that contradicts itself becomes a failure.

    Args:
        played: answers in the order they finished.
        adapter: reads what they say of drafts.
        max_new_tokens: limit of every request.
        check: finds the end of reasoning and validates answers; None where that is not asked for.
        known: how well earlier answers of the block are known; None if there are none.
        counts: the server's own of the whole block, where its answers tell nothing of drafts: chunks may show them.

    Raises:
        RefusedArm: an answer shows that the server is not what its cell says.
    """
    clock = played.clock
    told: list[_Told] = []
    steps = None if counts is None else adapter.chunk_steps(played.answered, counts)
    failures: list[Failure] = []
    for item in played.answered:
        try:
            _check_limit(item, max_new_tokens)
            told.append((item, adapter.drafts(item.reply) if steps is None else steps[item.question.key]))
        except _CONTRADICTIONS as error:
            failures.append(_failure(item, error))
    told = _with_silent(told, known)
    knowledge = _knowledge([drafts for _, drafts in told])
    requests = []
    for item, drafts in told:
        try:
            record = _without_drafts(item)
            if knowledge is Knowledge.rounds and isinstance(drafts, Steps):
                record = _with_rounds(record, drafts, max_new_tokens, lambda at: float(clock(at)))
            elif knowledge is Knowledge.requests and isinstance(drafts, DraftCounts):
                record = replace(record, counts=drafts)
        except _CONTRADICTIONS as error:
            failures.append(_failure(item, error))
            continue
        grammar = item.question.grammar
        requests.append(record if check is None or grammar is None else with_reasoning(record, check, grammar))
    return Recorded(tuple(requests), knowledge, sum(_num_drafted(drafts) for _, drafts in told), tuple(failures))


def _with_silent(told: Sequence[_Told], known: Knowledge | None) -> list[_Told]:
    """Where others tell their steps, an answer that tells nothing, or counts nothing, had none with drafts.

    Where others tell counts, an answer without a step is one whose counts are 0.
    """
    drafting = [drafts for _, drafts in told if _num_drafted(drafts)]
    counts_are_told = bool(drafting) or known is Knowledge.requests
    if any(isinstance(drafts, Unsplit) for _, drafts in told):
        return list(told)
    if counts_are_told and all(isinstance(drafts, DraftCounts) for drafts in drafting):
        return [(item, DraftCounts() if isinstance(drafts, Steps) else drafts) for item, drafts in told]
    if known is not Knowledge.rounds and not any(isinstance(drafts, Steps) for _, drafts in told):
        return list(told)
    return [(item, drafts if isinstance(drafts, Steps) or _num_drafted(drafts) else Steps()) for item, drafts in told]


def _knowledge(told: Sequence[Steps | DraftCounts | Unsplit | None]) -> Knowledge | None:
    if all(isinstance(drafts, Steps) for drafts in told):
        return Knowledge.rounds
    return Knowledge.requests if all(isinstance(drafts, DraftCounts) for drafts in told) else None


def _check_limit(item: Answered, max_new_tokens: int) -> None:
    """Refuse an answer of more tokens than were asked for: its throughput would be that of other work.

    Raises:
        MalformedAnswer: the server counts more, or sent more.
    """
    found = sum(event.num_output_tokens for event in item.arrivals)
    if found > max_new_tokens:
        raise MalformedAnswer(
            f"expected at most {max_new_tokens} tokens, the max_tokens of the request, found {found}: the server "
            "counts other tokens than it sends, or does not keep the limit"
        )


def _without_drafts(item: Answered) -> RequestRecord:
    question, reply = item.question, item.reply
    prompt = question.conversation.prompt
    num_prompt_tokens = reply.num_prompt_tokens
    return RequestRecord(
        prompt_id=prompt.prompt_id,
        category=prompt.category,
        turn=question.turn,
        sample=question.conversation.sample,
        seed=question.seed,
        num_prompt_tokens=len(question.token_ids) if num_prompt_tokens is None else num_prompt_tokens,
        output_token_ids=item.token_ids,
        finish_reason=FINISH[str(reply.finish_reason)] if item.stop is None else FinishReason.stop,
        submitted_s=item.submitted_s,
        arrivals=item.arrivals,
        sampling=None if prompt.sampling is None else question.sampling.recorded,
        stop=item.stop,
    )


def _with_rounds(
    record: RequestRecord, steps: Steps, max_new_tokens: int, clock: Callable[[float], float]
) -> RequestRecord:
    rounds = rounds_of(record.arrivals, steps, max_new_tokens, record.finish_reason, record.submitted_s, clock)
    return replace(record, rounds=rounds, arrivals=())


def _num_drafted(drafts: Any) -> int:
    if isinstance(drafts, Steps):
        return sum(drafts.drafted)
    return drafts.num_draft_tokens if isinstance(drafts, DraftCounts | Unsplit) else 0


def _failure(item: Answered, error: Exception) -> Failure:
    text = str(error) if isinstance(error, MalformedAnswer) else f"{INCONSISTENT}: {error}"
    return Failure(MalformedAnswer.__name__, text, request=item.question.key)
