"""One request and its rounds, which cannot be built inconsistent; knows no cells.

Definitions of the counts: `harness.analysis.columns`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from operator import attrgetter, le

from msgspec import Struct

from harness.records import InconsistentRecordError
from harness.records.counts import Arrival, DraftCounts
from harness.records.strict_json import Int64
from harness.records.token_logprobs import TokenLogprobs
from kernels.methods import VerificationMethod


class CutReason(Enum):
    """Why tokens that verification had emitted were cut off the end of a round."""

    eos = "eos"
    length = "length"
    grammar = "grammar"
    stop = "stop"


class FinishReason(Enum):
    """Why a request ended."""

    eos = "eos"
    length = "length"
    grammar = "grammar"
    """The answer is whole, and its grammar lets nothing follow."""
    stop = "stop"
    """At a stop string (decoding.stop)."""


@dataclass(frozen=True, slots=True)
class StopFound:
    """The stop string at which an answer ended."""

    string: str
    num_cut_characters: Int64 | None
    """At the end of the output tokens' text, which are no part of the answer: the stop string, and what the last token
    spells behind it. None where a server found it and the tokens do not show it."""


ROUNDING = 1e-6
"""Slack for expected counts, which are sums of float64 probabilities."""
BOUND_DECIMALS = 6
"""Of `RoundRecord.position_bounds`: enough to print, since a record holds one for every position of every round."""


EXPECTED_METHODS = tuple(method.value for method in VerificationMethod if method.traits.expected_is_recorded)
"""strict, probabilistic and block, in this order."""


class RoundRecord(Struct, frozen=True, gc=False):
    """One round of one request. The draw that ends the prefill is a round without draft tokens.

    A run holds millions: a Struct is made and checked in half of the time of a dataclass.
    """

    num_proposed_tokens: Int64
    """Draft tokens the drafter produced for this round."""
    num_draft_tokens: Int64
    """K_r: draft tokens that count as evidence, known before verification; not those beyond the length limit, nor the
    first drafted token that ends the request (EOS, the end of a stop string) and what follows it, whether or not they
    were examined."""
    num_accepted_tokens: Int64
    """A_r: accepted draft tokens among them."""
    num_output_tokens: Int64
    """Tokens that this round added to the output."""
    cut_reason: CutReason | None
    arrival_s: float
    """When the tokens reached the host, in seconds since the measured phase of the cell began."""
    share_s: float
    """The duration of the engine step, divided by the number of requests that took part in it."""
    expected_accepted: tuple[float, float, float] | None = None
    """Expected accepted tokens given this round's drafts under strict, probabilistic and block (EXPECTED_METHODS); None
    unless the whole draft is evidence."""
    num_free_tokens: Int64 | None = None
    """Draft tokens up to the end of reasoning, the marker included: all of them before it, 0 after it; None where no
    end of reasoning is looked for."""
    num_cut_tokens: Int64 = 0
    """Emitted tokens that were cut off again, for whatever reason."""
    host_us: float = 0.0
    """Microseconds that the host spent on the constraint."""
    is_whole: bool | None = None
    """Whether its step ran as one piece, as without a constraint; False: the host took part in it. None where nothing
    is held to a grammar."""
    num_held_steps: Int64 = 0
    """Steps before it that deferred the request and decided nothing, because reasoning may have ended in them."""
    position_bounds: tuple[float, ...] | None = None
    """Of each position that counts, the largest probability with which any lossless rule accepts a draft token there,
    drawn as it was, given those before it: sum min(p, q). Of a tree one of the children of the node accepted before, 0
    where there are none or the walk did not come. None where it was not measured."""
    path: tuple[Int64, ...] | None = None
    """Of a tree of drafts: the accepted nodes, by their place among the proposed tokens; None for a chain."""
    num_draft_positions: Int64 | None = None
    """D_r of a tree: depths of the draft tokens that count as evidence; None for a chain, which has a draft token at
    each."""

    @property
    def num_positions(self) -> int:
        """Positions at which a draft token counts as evidence."""
        return self.num_draft_tokens if self.num_draft_positions is None else self.num_draft_positions

    def __post_init__(self) -> None:
        # The messages are built only on failure.
        accepted, drafted, proposed = self.num_accepted_tokens, self.num_draft_tokens, self.num_proposed_tokens
        if not 0 <= accepted <= drafted <= proposed:
            raise InconsistentRecordError(
                f"expected 0 <= accepted <= drafted <= proposed, found {accepted}, {drafted}, {proposed}"
            )
        if self.path is not None or self.num_cut_tokens or self.num_draft_positions is not None:
            self._check_path_and_cut()
        # where a grammar cuts, the last token that is kept may be an accepted draft token
        needed = accepted + (self.cut_reason is not CutReason.grammar)
        if accepted and needed > self.num_output_tokens:
            raise InconsistentRecordError(
                f"{accepted} accepted tokens need {needed} output tokens, found {self.num_output_tokens}"
            )
        # a tree may accept tokens at depths that do not count, because an end of sequence lies on another branch
        whole = 1 + (accepted if self.path is None else len(self.path))
        if self.cut_reason is None and self.num_output_tokens != whole:
            raise InconsistentRecordError(
                f"a round without a cut emits accepted + 1 = {whole} tokens, found {self.num_output_tokens}"
            )
        if not (math.isfinite(self.arrival_s) and 0 <= self.share_s < math.inf):
            raise InconsistentRecordError(
                f"expected finite times and share_s >= 0, found arrival_s = {self.arrival_s}, share_s = {self.share_s}"
            )
        expected, most = self.expected_accepted, proposed + ROUNDING
        if expected is not None and not (
            len(expected) == len(EXPECTED_METHODS)
            and -ROUNDING <= expected[0] <= most
            and -ROUNDING <= expected[1] <= most
            and -ROUNDING <= expected[2] <= most
        ):
            raise InconsistentRecordError(
                f"expected_accepted: expected {len(EXPECTED_METHODS)} values in [0, {proposed}], found {expected}"
            )
        bounds = self.position_bounds
        if bounds is not None and not (
            len(bounds) == self.num_positions and all(0 <= bound <= 1 + ROUNDING for bound in bounds)
        ):
            raise InconsistentRecordError(
                f"position_bounds: expected {self.num_positions} values in [0, 1], found {bounds}"
            )
        if self.num_free_tokens is not None and not 0 <= self.num_free_tokens <= proposed:
            raise InconsistentRecordError(
                f"num_free_tokens: expected 0 to {proposed}, the proposed tokens, found {self.num_free_tokens}"
            )
        if self.num_held_steps and (self.num_held_steps < 0 or self.is_whole is not False):
            raise InconsistentRecordError(
                "num_held_steps: expected 0 or more, and none but before a round in which the host took part, "
                f"found {self.num_held_steps} with is_whole = {self.is_whole}"
            )

    def _check_path_and_cut(self) -> None:
        accepted, proposed, path = self.num_accepted_tokens, self.num_proposed_tokens, self.path
        most = self.num_positions
        if not accepted <= most <= self.num_draft_tokens:
            raise InconsistentRecordError(
                f"num_draft_positions: expected {accepted} to {self.num_draft_tokens}, found {most}"
            )
        if path is not None and not (accepted <= len(path) and all(a < b for a, b in pairwise((-1, *path, proposed)))):
            raise InconsistentRecordError(
                f"path: expected {accepted} or more growing places below {proposed}, found {path}"
            )
        if self.num_output_tokens < 0 or not 0 <= self.host_us < math.inf:
            raise InconsistentRecordError(
                "expected num_output_tokens of 0 or more and a finite host_us of 0 or more, found "
                f"{self.num_output_tokens} and {self.host_us}"
            )
        if self.num_cut_tokens < 0 or (self.num_cut_tokens > 0 and self.cut_reason is None):
            raise InconsistentRecordError(
                f"num_cut_tokens: expected 0 or more, and none without a cut_reason, found {self.num_cut_tokens}"
            )


def counts_of_rounds(rounds: Sequence[RoundRecord]) -> DraftCounts:
    """The drafts of some rounds, for a request that is known better than others of its cell."""
    pairs = [(item.num_draft_tokens, item.num_accepted_tokens) for item in rounds if item.num_draft_tokens]
    drafted, accepted = [first for first, _ in pairs], [second for _, second in pairs]
    by_position = (
        tuple(sum(count > place for count in counts) for place in range(max(counts, default=0)))
        for counts in (drafted, accepted)
    )
    return DraftCounts(len(pairs), sum(drafted), sum(accepted), *by_position)


ENDING_CUTS = (CutReason.eos, CutReason.length, CutReason.stop)
"""Cuts after which a request emits nothing more."""


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request: one turn of one prompt, answered once."""

    prompt_id: str
    """The unit of resampling: every turn and every copy of a prompt carries the same id."""
    category: str
    turn: Int64
    sample: Int64
    """Copy of the prompt, 0 unless oversampled."""
    seed: Int64
    num_prompt_tokens: Int64
    output_token_ids: tuple[Int64, ...]
    """Empty where a server does not give them."""
    finish_reason: FinishReason
    submitted_s: float
    """When the request was admitted to a slot, in seconds since the measured phase of the cell began."""
    rounds: tuple[RoundRecord, ...] = ()
    """Empty where only arrivals are known."""
    num_reasoning_tokens: Int64 | None = None
    """Output tokens up to the end of reasoning, the marker included; None where it did not end or is not looked for."""
    answer_is_valid: bool | None = None
    """The result of a validator other than the grammar's library; None where the answer was not validated."""
    answer_is_right: bool | None = None
    """Whether it is the known answer of its prompt, or passes its tests; None where nothing is known, or not asked."""
    arrivals: tuple[Arrival, ...] = ()
    """Where rounds are not known."""
    counts: DraftCounts | None = None
    """Of its drafts, where rounds are not known and these are."""
    sampling: Mapping[str, Int64 | float | str] | None = None
    """temperature, top_k, top_p, min_p and what changes logits of its own, which the workload gave; None where they are
    the cell's."""
    logprobs: TokenLogprobs | None = None
    """Of the output tokens; None if not requested."""
    stop: StopFound | None = None
    """What ended it where `finish_reason` is `stop`."""

    @property
    def key(self) -> tuple[str, int, int]:
        """What tells the requests of a cell apart: prompt, turn, copy."""
        return self.prompt_id, self.turn, self.sample

    @property
    def events(self) -> tuple[RoundRecord, ...] | tuple[Arrival, ...]:
        """Its rounds, or arrivals where only these are known; both have `arrival_s` and `num_output_tokens`."""
        return self.rounds or self.arrivals

    @property
    def num_output_tokens(self) -> int:
        return sum(map(attrgetter("num_output_tokens"), self.events))

    def __post_init__(self) -> None:
        self._check_ranges()
        if (self.stop is not None) is not (self.finish_reason is FinishReason.stop):
            raise InconsistentRecordError(
                f"request {self.key}: expected a stop string where it ended by one, and only there, found {self.stop} "
                f"with finish_reason = {self.finish_reason.value}"
            )
        if bool(self.rounds) is bool(self.arrivals):
            raise InconsistentRecordError(
                f"request {self.key}: expected rounds (at least the prefill's) or arrivals, found "
                f"{'both' if self.rounds else 'no rounds and no arrivals'}"
            )
        if self.rounds and self.counts is not None:
            raise InconsistentRecordError(f"request {self.key}: expected no counts beside rounds, found {self.counts}")
        num_emitted = self.num_output_tokens
        if num_emitted != len(self.output_token_ids) and (self.rounds or self.output_token_ids):
            raise InconsistentRecordError(
                f"request {self.key}: rounds emitted {num_emitted} tokens, the output has {len(self.output_token_ids)}"
            )
        if self.logprobs is not None and len(self.logprobs.token) != len(self.output_token_ids):
            raise InconsistentRecordError(
                f"request {self.key}: expected log-probabilities of {len(self.output_token_ids)} output tokens, found "
                f"{len(self.logprobs.token)}"
            )
        num_reasoning = self.num_reasoning_tokens
        if num_reasoning is not None and not 0 <= num_reasoning <= num_emitted:
            raise InconsistentRecordError(
                f"request {self.key}: expected 0 to {num_emitted} reasoning tokens, found {num_reasoning}"
            )
        times = [self.submitted_s, *map(attrgetter("arrival_s"), self.events)]
        if not all(map(le, times, times[1:])):
            last, back = next(pair for pair in pairwise(times) if not pair[0] <= pair[1])
            raise InconsistentRecordError(
                f"request {self.key}: arrivals must not go back in time, found {back} after {last}"
            )
        if not {*ENDING_CUTS}.isdisjoint(map(attrgetter("cut_reason"), self.rounds[:-1])):
            raise InconsistentRecordError(
                f"request {self.key}: a round cut by eos, length or stop must be the last one"
            )

    def _check_ranges(self) -> None:
        for name in ("turn", "sample", "num_prompt_tokens"):
            if getattr(self, name) < 0:
                raise InconsistentRecordError(
                    f"request {self.key}: {name}: expected 0 or more, found {getattr(self, name)}"
                )
        if min(self.output_token_ids, default=0) < 0:
            raise InconsistentRecordError(
                f"request {self.key}: expected token ids of 0 or more, found {min(self.output_token_ids)}"
            )
