"""Negative controls: samplers that are wrong in a known way, each of which certification has to reject.

They are made from the project's own core, whatever the subject is: they show what the test would have seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from harness.certification.block_mutants import Mistake, broken_verify
from harness.certification.cases import COUPLED, RAGGED, SAMPLED, Case, Method
from harness.certification.law import Profile
from harness.certification.subject import Functions, Subject
from harness.certification.toy_models import CONTROL, MASKED_CONTROL, ToyModels
from kernels.contract import Sampling, Streams, Verification
from kernels.streams import Purpose


@dataclass(frozen=True)
class Control:
    """One wrong sampler and the cell on which it shows."""

    name: str
    case: Case
    alter: Callable[[Subject], Subject]
    """Makes the wrong sampler from a right one."""


def _altered(subject: Subject, **functions: Callable) -> Functions:
    """The subject with some of its functions replaced; it keeps no statistics, so that the cache is read."""
    right = Functions(f"{subject.name}, altered", subject.verify, subject.draw, subject.coupled_draw)
    return replace(right, **functions)  # type: ignore[arg-type]


def _unchanged(subject: Subject) -> Subject:
    """For methods that are wrong by themselves."""
    return _altered(subject)


def _drafts_with_residual_noise(subject: Subject) -> Subject:
    """The draft of a position and the token recovered there are drawn with one uniform number."""

    return _altered(
        subject,
        draw=lambda logits, sampling, streams, _, *others: subject.draw(
            logits, sampling, streams, Purpose.residual, *others
        ),
    )


def _same_streams_every_round(subject: Subject) -> Subject:
    """Nothing that is drawn at a position changes when the position is drafted and verified again."""

    def in_round_0(streams: Streams) -> Streams:
        return replace(streams, rounds=torch.zeros_like(streams.rounds))

    return _altered(
        subject,
        draw=lambda logits, sampling, streams, *others: subject.draw(logits, sampling, in_round_0(streams), *others),
        verify=lambda *inputs: subject.verify(*inputs[:-1], in_round_0(inputs[-1])),
    )


def _mistaken(mistake: Mistake) -> Callable[[Subject], Subject]:
    return lambda subject: _altered(subject, verify=broken_verify(mistake))


def _mask_forgotten_in_the_draft(subject: Subject) -> Subject:
    """The draft rows are verified as if they had been drawn without a mask."""

    return _altered(
        subject,
        verify=lambda logits, draft, *others, **masked: subject.verify(
            logits, replace(draft, mask=None), *others, **masked
        ),
    )


def _temperature_forgotten(subject: Subject) -> Subject:
    """Sampled requests that nothing is cut from are drawn and verified at temperature 1."""

    def without(sampling: Sampling) -> Sampling:
        cuts = (sampling.top_k > 0) | (sampling.top_p < 1) | (sampling.min_p > 0)
        kept = cuts | (sampling.temperature == 0)
        return replace(sampling, temperature=torch.where(kept, sampling.temperature, 1.0))

    return _altered(
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
            "probabilistic, temperature forgotten where nothing is cut",
            replace(probabilistic, profiles=(Profile(temperature=0.7),)),
            _temperature_forgotten,
        ),
        Control("typical (lossy)", method(Verification(Method.typical)), _unchanged),
        Control("lenient, l = 0.7 (lossy)", method(Verification(Method.lenient, leniency=0.7)), _unchanged),
    ]
