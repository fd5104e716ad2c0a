"""FlashSpec's verification of log-probabilities: one step for drawn drafts, one for proposals without a law.

    pip download --no-deps flashspec==0.3.1
    PYTHONPATH=flashspec-0.3.1-py3-none-any.whl rejection-lab certify --subject flashspec

Two subjects, as its engine has two paths:

| name | drawn drafts | proposals without a law (its lookup of n-grams) |
|---|---|---|
| `flashspec` | `rejection_step` | `rejection_step_onehot` |
| `flashspec_batched` | `rejection_sample`, and the bonus token as the engine draws it | none |

Both draw from torch's global generator, as they do unless they are handed one. The assembly kernel for the residual is
another package, which is not tested.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.checks.certification.implementations.kernel_package import import_modules, version_of
from harness.checks.certification.implementations.probabilities import (
    GREEDY,
    SAMPLED,
    Method,
    accepted_and_next,
    drafted_probs,
    features,
    multinomial_draw,
    no_coupled_draw,
    target_probs,
)
from harness.checks.certification.subject import Functions
from kernels.contract import Draft, Sampling, Streams, Verification, VerificationResult

GET = "pip download --no-deps flashspec==0.3.1"
REJECTION = "flashspec.sampling.rejection"
DRAWN = (Method.probabilistic, SAMPLED, True)
REMARK = "random numbers from torch's generator"
FEATURES = features(frozenset({DRAWN, (Method.probabilistic, GREEDY, False)}), REMARK)
BATCHED_FEATURES = features(frozenset({DRAWN}), REMARK)


def incremental(device: torch.device) -> Functions:
    """The step of the incremental path; raises SettingsError where FlashSpec is missing."""
    (rejection,) = import_modules("flashspec", (REJECTION,), GET)

    def verify(
        target_logits: Tensor, draft: Draft, sampling: Sampling, verification: Verification, streams: Streams
    ) -> VerificationResult:
        target = target_probs(target_logits, sampling, draft).log()
        if draft.logits is None:
            step = rejection.rejection_step_onehot(draft.token_ids, target)
        else:
            step = rejection.rejection_step(draft.token_ids, drafted_probs(draft, sampling.temperature).log(), target)
        return accepted_and_next(draft, step[:, 0], step[:, 1])

    return Functions(_name(), verify, multinomial_draw, no_coupled_draw, FEATURES)


def batched(device: torch.device) -> Functions:
    """`rejection_sample` and the engine's bonus token; raises SettingsError where FlashSpec is missing."""
    (rejection,) = import_modules("flashspec", (REJECTION,), GET)

    def verify(
        target_logits: Tensor, draft: Draft, sampling: Sampling, verification: Verification, streams: Streams
    ) -> VerificationResult:
        probs = target_probs(target_logits, sampling, draft)
        depth = draft.token_ids.shape[1]
        found, first_rejection, _ = rejection.rejection_sample(
            draft.token_ids,
            drafted_probs(draft, sampling.temperature).log(),
            probs[:, :depth].log(),
            draft.token_ids,
            depth,
        )
        bonus = torch.multinomial(probs[:, depth], 1)
        accepted = first_rejection.long()
        next_ids = torch.cat([found, bonus], dim=1).gather(1, accepted[:, None])[:, 0]
        return accepted_and_next(draft, accepted, next_ids)

    return Functions(f"{_name()}, batched", verify, multinomial_draw, no_coupled_draw, BATCHED_FEATURES)


def _name() -> str:
    return f"FlashSpec {version_of('flashspec')}"
