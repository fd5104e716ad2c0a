"""A request on its way through the engine: what goes in, and what is known of it while it runs."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

from harness.engine.commit import Commit, commit
from harness.records import FinishReason, RequestRecord, RoundRecord


@dataclass(frozen=True)
class Request:
    """One turn of one prompt, as token ids."""

    prompt_id: str
    category: str
    turn: int
    sample: int
    seed: int
    token_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.token_ids:
            raise ValueError(f"prompt {self.prompt_id}: expected at least one prompt token, found none")


class Timing:
    """Seconds of one engine step, known before (`arrival_s`) and after (`share_s`) the drafter took the step in."""

    def __init__(self, arrival_s: float) -> None:
        self.arrival_s = arrival_s
        self.share_s = 0.0


@dataclass
class Sequence:
    """A request that occupies a slot."""

    request: Request
    slot: int
    submitted_s: float
    token_ids: list[int] = field(default_factory=list)
    num_rounds: int = 0
    finish_reason: FinishReason | None = None
    is_tainted: bool = False
    """The model gave this request a row without a distribution; its slot may hold NaN."""
    _rounds: list[tuple[Commit, int, Timing, tuple[float, float, float] | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.token_ids = list(self.request.token_ids)

    @property
    def length(self) -> int:
        return len(self.token_ids)

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[len(self.request.token_ids) :]

    def append_round(
        self,
        emitted: SequenceOf[int],
        draft_ids: SequenceOf[int],
        limits: Limits,
        timing: Timing,
        expected_accepted: tuple[float, float, float] | None,
    ) -> None:
        """Commit what verification emitted, and remember the round."""
        num_remaining = limits.max_new_tokens - len(self.output_token_ids)
        result = commit(emitted, draft_ids, num_remaining, limits.eos_token_ids)
        self.token_ids.extend(result.token_ids)
        self.finish_reason = result.finish_reason
        self.num_rounds += 1
        # the closed form is for the whole draft, so it stands where the whole draft is evidence
        whole = result.num_draft_tokens == len(draft_ids)
        self._rounds.append((result, len(draft_ids), timing, expected_accepted if whole else None))

    def to_record(self) -> RequestRecord:
        """The record of a finished request."""
        assert self.finish_reason is not None
        rounds = tuple(
            RoundRecord(
                num_proposed_tokens=num_proposed_tokens,
                num_draft_tokens=result.num_draft_tokens,
                num_accepted_tokens=result.num_accepted_tokens,
                num_output_tokens=len(result.token_ids),
                cut_reason=result.cut_reason,
                arrival_s=timing.arrival_s,
                share_s=timing.share_s,
                expected_accepted=expected_accepted,
            )
            for result, num_proposed_tokens, timing, expected_accepted in self._rounds
        )
        request = self.request
        return RequestRecord(
            prompt_id=request.prompt_id,
            category=request.category,
            turn=request.turn,
            sample=request.sample,
            seed=request.seed,
            num_prompt_tokens=len(request.token_ids),
            output_token_ids=tuple(self.output_token_ids),
            finish_reason=self.finish_reason,
            submitted_s=self.submitted_s,
            rounds=rounds,
        )


@dataclass(frozen=True)
class Limits:
    """Where a request ends."""

    max_new_tokens: int
    eos_token_ids: frozenset[int]
    """Empty to go on past the end of sequence."""
