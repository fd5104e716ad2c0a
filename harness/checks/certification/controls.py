"""Negative controls: samplers that are wrong in a known way, each of which certification has to reject.

They are made from the project's own core, whatever the subject is: they show what the test would have seen. Mistakes in
block verification, each found in public code or easy to make, are built from the reference's own pieces, so that
nothing else differs from the right rule (kernels.methods.block).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from harness.checks.certification.cases import COUPLED, PENALTIES, RAGGED, SAMPLED, Case, Method
from harness.checks.certification.depth_rules import DepthRule
from harness.checks.certification.subject import Functions, Subject
from harness.checks.certification.toy_models import CANDIDATES, CONTROL, MASKED_CONTROL, SHARED, Profile, ToyModels
from kernels.contract import Draft, Guarantee, Sampling, Streams, Verification, VerificationResult
from kernels.methods.block import block_odds, log_prefix_ratios
from kernels.random.streams import Purpose, uniform
from kernels.reference.choose import choose
from kernels.reference.odds import Odds, up_to_first_failure, up_to_last_success
from kernels.reference.proposal import Compared, Proposal, propose
from kernels.reference.residual import emission
from kernels.reference.verdict import assemble
from kernels.verification import probe


class Mistake(Enum):
    """What is wrong."""

    unscaled_residual = "the residual is not scaled by P_A"
    first_failure = "stops at the first failure"
    bare_product = "accepts with P_i instead of h_i"
    same_accepts = "accept uniforms of a position are the same in every round"
    depth_of_batch = "takes the batch's K for the request's own"


def _odds(proposal: Proposal, log_ratios: Tensor, mistake: Mistake) -> Odds:
    right = block_odds(proposal)
    ratios = log_ratios[:, 1:].exp()
    if mistake is Mistake.bare_product:
        return Odds(ratios, torch.ones_like(ratios))
    if mistake is Mistake.depth_of_batch:
        # h_i of a position that is not the last, although nothing follows: Z = 0.
        ends_early = torch.arange(1, ratios.shape[1] + 1, device=ratios.device) == proposal.num_usable[:, None]
        ends_early[:, -1] = False
        settled = (ratios == 1) | ~ends_early
        return Odds(torch.where(settled, right.numerator, 0.0), right.denominator)
    return right


def broken_verify(mistake: Mistake) -> Callable[[Tensor, Draft, Sampling, Verification, Streams], VerificationResult]:
    """A `verify` with this mistake: block, at temperatures above 0, in packed rows without padded slots."""

    def verify(
        target_logits: Tensor, draft: Draft, sampling: Sampling, verification: Verification, streams: Streams
    ) -> VerificationResult:
        proposal = propose(target_logits, draft, sampling, reads_draft=True)
        log_ratios = log_prefix_ratios(proposal)
        positions = streams.positions[:, None] + torch.arange(draft.token_ids.shape[1], device=target_logits.device)
        rounds = torch.zeros_like(streams.rounds) if mistake is Mistake.same_accepts else streams.rounds
        uniforms = uniform(streams.seeds[:, None], Purpose.accept, positions, rounds[:, None])
        passes = _odds(proposal, log_ratios, mistake).passes(uniforms)
        count = up_to_first_failure if mistake is Mistake.first_failure else up_to_last_success
        num_accepted = count(passes, proposal)
        scale = log_ratios.gather(1, num_accepted[:, None])[:, 0].exp()
        if mistake is Mistake.unscaled_residual:
            scale = torch.ones_like(scale)
        recovers = num_accepted < proposal.num_draft_tokens
        purposes = torch.where(recovers, int(Purpose.residual), int(Purpose.bonus))
        uniforms = uniform(streams.seeds, purposes, streams.positions + num_accepted, streams.rounds)
        tokens = choose(emission(proposal, num_accepted, scale), uniforms)
        invalid = (num_accepted == proposal.num_usable) & proposal.impossible
        return assemble(proposal.token_ids, num_accepted, tokens, invalid, Compared(proposal.rows, proposal.target))

    return verify


@dataclass(frozen=True)
class Control:
    """One wrong sampler and the case on which it shows."""

    name: str
    case: Case
    alter: Callable[[Subject], Subject]
    """Makes the wrong sampler from a right one."""


def altered(subject: Subject, **functions: Callable) -> Functions:
    """The subject with some of its functions replaced; it keeps no statistics, so that the cache is read."""
    right = Functions(f"{subject.name}, altered", subject.verify, subject.draw, subject.coupled_draw)
    right = replace(right, edit_logits=getattr(subject, "edit_logits", None))
    return replace(right, **functions)  # type: ignore[arg-type]


def _unchanged(subject: Subject) -> Subject:
    """For methods that are wrong by themselves."""
    return altered(subject)


def _drafts_with_residual_noise(subject: Subject) -> Subject:
    """The draft of a position and the token recovered there are drawn with one uniform number."""

    return altered(
        subject,
        draw=lambda logits, sampling, streams, _, *others: subject.draw(
            logits, sampling, streams, Purpose.residual, *others
        ),
    )


def _same_streams_every_round(subject: Subject) -> Subject:
    """Nothing that is drawn at a position changes when the position is drafted and verified again."""

    def in_round_0(streams: Streams) -> Streams:
        return replace(streams, rounds=torch.zeros_like(streams.rounds))

    return altered(
        subject,
        draw=lambda logits, sampling, streams, *others: subject.draw(logits, sampling, in_round_0(streams), *others),
        verify=lambda *inputs: subject.verify(*inputs[:-1], in_round_0(inputs[-1])),
    )


def _mistaken(mistake: Mistake) -> Callable[[Subject], Subject]:
    return lambda subject: altered(subject, verify=broken_verify(mistake))


def _mask_forgotten_in_the_draft(subject: Subject) -> Subject:
    """The draft rows are verified as if they had been drawn without a mask."""

    return altered(
        subject,
        verify=lambda logits, draft, *others, **masked: subject.verify(
            logits, replace(draft, mask=None), *others, **masked
        ),
    )


def _verified_by_the_law_of_all_tokens(subject: Subject) -> Subject:
    """Drafts are drawn among shared tokens, and verified by rows that give others as much probability again.

    What is drawn as one of the others would have to be some token of the target: one that is not shared.
    """

    def verify(logits: Tensor, draft: Draft, *others: Any) -> VerificationResult:
        assert draft.logits is not None and draft.draft_to_target is not None
        rest = draft.logits.float().logsumexp(-1, keepdim=True).to(draft.logits.dtype)
        ids = torch.cat([draft.draft_to_target, torch.zeros_like(draft.draft_to_target[:1])])
        widened = replace(draft, logits=torch.cat([draft.logits, rest], dim=-1), draft_to_target=ids)
        return subject.verify(logits, widened, *others)

    return altered(subject, verify=verify)


def _verified_as_if_all_were_candidates(subject: Subject) -> Subject:
    """Drafts are drawn among a few candidates, and verified by rows that give every other token as much as the best."""

    def verify(logits: Tensor, draft: Draft, *others: Any) -> VerificationResult:
        assert draft.logits is not None
        best = draft.logits.amax(-1, keepdim=True)
        filled = torch.where(draft.logits == -torch.inf, best, draft.logits)
        return subject.verify(logits, replace(draft, logits=filled), *others)

    return altered(subject, verify=verify)


def _penalties_of_the_start(subject: Subject) -> Subject:
    """Every target row has the penalties of the round's start: they count none of the drafts before it.

    SGLang drafts so ("a relaxed version of penalties for speculative decoding").
    """

    def edit_logits(logits: Tensor, token_ids: Tensor, *others: Any) -> None:
        subject.edit_logits(logits, torch.full_like(token_ids, -1), *others)  # type: ignore[attr-defined]

    return altered(subject, edit_logits=edit_logits)


def _temperature_forgotten(subject: Subject) -> Subject:
    """Sampled requests that nothing is cut from are drawn and verified at temperature 1."""

    def without(sampling: Sampling) -> Sampling:
        cuts = (sampling.top_k > 0) | (sampling.top_p < 1) | (sampling.min_p > 0)
        kept = cuts | (sampling.temperature == 0)
        return replace(sampling, temperature=torch.where(kept, sampling.temperature, 1.0))

    return altered(
        subject,
        draw=lambda logits, sampling, *others: subject.draw(logits, without(sampling), *others),
        verify=lambda logits, draft, sampling, *others: subject.verify(logits, draft, without(sampling), *others),
    )


def _offset(models: ToyModels, offset: float) -> ToyModels:
    """The same law; in bfloat16, logits of this size are coarse."""
    return replace(models, draft_logits=models.draft_logits + offset)


def controls() -> list[Control]:
    """Every control; the method is probabilistic or block unless the name says otherwise."""
    probabilistic = Case(CONTROL, Verification(Method.probabilistic), SAMPLED, cached=True, row_stats=False)
    block = replace(probabilistic, verification=Verification(Method.block))

    def coarse(case: Case) -> Case:
        return replace(case, models=_offset(CONTROL, 30.0), cache_dtype="bfloat16")

    def method(verification: Verification, case: Case = probabilistic) -> Case:
        return replace(case, verification=verification)

    coupled = replace(probabilistic, draft_sampling=COUPLED)
    return [
        Control(
            "pr35461: one stream for draft, acceptance and residual",
            method(Verification(Method.pr35461), coupled),
            _unchanged,
        ),
        Control("probabilistic, draft and residual share their uniform", probabilistic, _drafts_with_residual_noise),
        *(
            Control(
                f"block, {mistake.value}",
                replace(block, lengths=RAGGED) if mistake is Mistake.depth_of_batch else block,
                _mistaken(mistake),
            )
            for mistake in Mistake
        ),
        Control("block, no stream changes with the round", block, _same_streams_every_round),
        Control("block, coupled drafts", replace(block, draft_sampling=COUPLED), _unchanged),
        Control("probabilistic, float32 drafts verified from a bfloat16 cache", coarse(probabilistic), _unchanged),
        Control("block, float32 drafts verified from a bfloat16 cache", coarse(block), _unchanged),
        Control(
            "probabilistic, mask forgotten in the draft rows",
            replace(probabilistic, models=MASKED_CONTROL),
            _mask_forgotten_in_the_draft,
        ),
        Control(
            "probabilistic, drafts among shared tokens verified by the law of all tokens",
            replace(probabilistic, models=SHARED),
            _verified_by_the_law_of_all_tokens,
        ),
        Control(
            "probabilistic, drafts among candidates verified as if all tokens were some",
            replace(probabilistic, models=CANDIDATES),
            _verified_as_if_all_were_candidates,
        ),
        Control(
            "probabilistic, temperature forgotten where nothing is cut",
            replace(probabilistic, profiles=(Profile(temperature=0.7),)),
            _temperature_forgotten,
        ),
        *(
            Control(
                f"{case.verification.method.value}, penalties of the round's start at every position",
                replace(case, edits=PENALTIES),
                _penalties_of_the_start,
            )
            for case in (probabilistic, block)
        ),
        *(
            Control(f"{case.verification.method.value}, {rule.value}", replace(case, depth_rule=rule), _unchanged)
            for rule in DepthRule
            if not rule.is_lossless
            for case in (probabilistic, block)
        ),
        *(
            Control(
                ", ".join(filter(None, (lossy.value, lossy.kind.probe_words))) + " (lossy)",
                method(probe(lossy, probabilistic.num_speculative_tokens)),
                _unchanged,
            )
            for lossy in Method
            if lossy.traits.guarantee is Guarantee.lossy
        ),
    ]
