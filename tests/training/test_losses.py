"""What the losses of training have their minimum at."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from harness.training.losses.loss import Loss
from harness.training.settings import HeadTraining, LossKind
from harness.training.train_head import loss_of
from harness.training.unrolled import StepTerms, accepted, step_terms

TARGETS = torch.tensor([[0.70, 0.10, 0.10, 0.10], [0.05, 0.55, 0.20, 0.20], [0.65, 0.10, 0.15, 0.10]])
"""Target distributions of three contexts that the draft does not tell apart."""


def terms_of(logits: Tensor) -> list[StepTerms]:
    """Of a draft of one step, the same distribution in each context."""
    return [step_terms(logits.expand(1, 3, -1), TARGETS.log()[None], torch.zeros(1, 3), torch.zeros(1, 3).long())]


def minimum(loss: Loss) -> Tensor:
    """[V] the draft distribution at which the mean of a loss is least."""
    logits = torch.zeros(4, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.05)
    for index in range(600):
        optimizer.param_groups[0]["lr"] = 0.05 * (1 - index / 600)
        optimizer.zero_grad()
        loss.values(terms_of(logits), fraction=1.0).mean().backward()
        optimizer.step()
    return logits.detach().softmax(-1)


def overlap(draft: Tensor) -> float:
    return torch.minimum(TARGETS, draft).sum(-1).mean().item()


def test_acceptance_is_largest_where_its_own_loss_is_least() -> None:
    """Where the draft cannot be the target, KL takes the mean of the targets, and others accept more drafts."""
    kl, lk = (minimum(loss_of(HeadTraining(loss=kind))) for kind in (LossKind.kl, LossKind.lk))
    acceptance = minimum(loss_of(HeadTraining(loss=LossKind.acceptance, late_cross_entropy=0.0)))
    torch.testing.assert_close(kl, TARGETS.mean(0), atol=2e-3, rtol=0)
    # the token-wise median maximises it, and sums to 1 here
    median = TARGETS.median(0).values
    torch.testing.assert_close(median.sum(), torch.tensor(1.0))
    torch.testing.assert_close(acceptance, median, atol=2e-2, rtol=0)
    assert overlap(kl) + 0.01 < overlap(lk) < overlap(acceptance)


def test_the_default_is_kl_and_then_acceptance() -> None:
    terms = terms_of(torch.tensor([0.3, -0.2, 0.1, 0.4]))
    default = loss_of(HeadTraining())
    kl, late = loss_of(HeadTraining(loss=LossKind.kl)), loss_of(HeadTraining(loss=LossKind.acceptance))
    assert torch.equal(default.values(terms, 0.5), kl.values(terms, 0.5))
    assert torch.equal(default.values(terms, 0.6), late.values(terms, 0.6))
    expected = 0.05 * terms[0].cross_entropy - accepted(terms)[0]
    torch.testing.assert_close(late.values(terms, 0.6), expected)


def test_a_setting_of_another_loss_is_refused() -> None:
    with pytest.raises(ValueError, match=r"late_cross_entropy: expected none beside loss=lk, found 0\.1"):
        loss_of(HeadTraining(loss=LossKind.lk, late_cross_entropy=0.1))
