"""A recorded request as a record and its terms, by the rules of the local engine: what is cut, and what counts.

A request is kept if all of its rounds are there, from the end of its prompt to a stop token or its limit. Others are
left out and counted by reason, since a record needs all rounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.backends.recordings.read import RecordedRequest, RecordedRound
from harness.engine.commit import commit
from harness.records.acceptance_terms import DraftTerms, RequestTerms
from harness.records.request import BOUND_DECIMALS, FinishReason, RequestRecord, RoundRecord


class LeftOut(Exception):
    """A request that is not kept; the message is the reason, by which such requests are counted."""


@dataclass(frozen=True)
class Converted:
    """A request as a record and its terms."""

    record: RequestRecord
    terms: RequestTerms


def converted(request: RecordedRequest, sample: int, start_s: float) -> Converted:
    """The record of a request.

    Args:
        request: as it was recorded.
        sample: number of the copy of its prompt.
        start_s: the worker's clock at the first of the cell's requests.

    Raises:
        LeftOut: it is not kept.
    """
    about = request.about
    if about.cannot:
        raise LeftOut(f"had {about.cannot}, which a recording does not hold")
    stops, position = frozenset(about.stop_token_ids), about.num_prompt_tokens
    rounds: list[RoundRecord] = []
    drafts: list[DraftTerms] = []
    output: list[int] = []
    finish: FinishReason | None = None
    for item in request.rounds:
        if item.position != position:
            raise LeftOut("lack rounds, or have some twice, as after a preemption")
        _check_round(item)
        position += len(item.output_token_ids)
        found = commit(item.output_token_ids, item.draft_token_ids, about.max_tokens - len(output), stops)
        num_proposed = len(item.draft_token_ids)
        is_full = found.num_draft_tokens == num_proposed > 0
        if is_full:
            drafts.append(DraftTerms(len(rounds), item.terms))
        bounds = item.terms["overlap"][: found.num_draft_tokens].round(BOUND_DECIMALS).tolist() if num_proposed else []
        rounds.append(
            RoundRecord(
                num_proposed_tokens=num_proposed,
                num_draft_tokens=found.num_draft_tokens,
                num_accepted_tokens=found.num_accepted_tokens,
                num_output_tokens=len(found.token_ids),
                cut_reason=found.cut_reason,
                arrival_s=item.time_s - start_s,
                share_s=item.share_s,
                expected_accepted=item.expected_accepted if is_full else None,
                num_cut_tokens=found.num_cut_tokens,
                position_bounds=tuple(bounds) if num_proposed else None,
            )
        )
        output += found.token_ids
        finish = found.finish_reason
        if finish is not None:
            # the engine may have run a step more before it saw the end
            break
    if finish is None:
        raise LeftOut("did not end by a stop token or max_tokens as far as it was recorded")
    record = RequestRecord(
        prompt_id=about.prompt,
        category="",
        turn=0,
        sample=sample,
        seed=about.seed,
        num_prompt_tokens=about.num_prompt_tokens,
        output_token_ids=tuple(output),
        finish_reason=finish,
        submitted_s=about.submitted_s - start_s,
        rounds=tuple(rounds),
    )
    return Converted(record, RequestTerms.of(record.key, drafts))


def _check_round(item: RecordedRound) -> None:
    """Raise LeftOut where drafts or terms cannot be used."""
    if -1 in item.draft_token_ids:
        raise LeftOut("had draft tokens withdrawn by the engine (-1)")
    if any(not np.isfinite(values).all() for values in item.terms.values()):
        raise LeftOut("met rows without a distribution (NaN or infinite logits)")
    accepted = item.output_token_ids[:-1]
    if accepted != item.draft_token_ids[: len(accepted)]:
        raise LeftOut("emitted other tokens than those that were drafted for it")
