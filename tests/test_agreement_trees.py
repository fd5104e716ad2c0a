"""Comparing cores on trees of drafts: rounding explains what lies at a boundary, and nothing else."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from harness.agreement.compare import compare_verify
from harness.agreement.counts import Agreement
from harness.agreement.round_inputs import RoundInputs
from kernels.contract import Draft, Sampling, Streams, Verification, VerificationResult
from kernels.core import reference_core
from kernels.methods import TreeMethod

COUNT, SIZE = 100_000, 4
METHODS = pytest.mark.parametrize("method", TreeMethod, ids=lambda method: method.value)


def many_trees(temperature: float = 1.0) -> RoundInputs:
    """Two children of the context in each, whose laws are near enough to the target's to be accepted at times."""
    generator = torch.Generator().manual_seed(3)
    target = torch.randn(COUNT, 3, SIZE, generator=generator)
    rows = (target[:, :1] + torch.randn(COUNT, 1, SIZE, generator=generator)).repeat(1, 2, 1)
    token_ids = rows[:, 0].softmax(dim=1).multinomial(2, replacement=True, generator=generator)
    numbers = torch.arange(COUNT)
    return RoundInputs(
        target.flatten(0, 1),
        Draft(token_ids, torch.full((COUNT,), 2), rows, parents=torch.full((COUNT, 2), -1)),
        Sampling.same_for_all(COUNT, temperature, 0, 1.0, 0.0),
        Streams(numbers, numbers % 1000, torch.zeros_like(numbers)),
    )


def compared(method: TreeMethod, error: float, temperature: float = 1.0) -> Agreement:
    """The reference with target logits that are off by an error, beside itself."""
    core = reference_core()

    def verify(target_logits: torch.Tensor, *others: Any, **options: Any) -> VerificationResult:
        noise = torch.randn(target_logits.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        return core.verify(target_logits.double() + error * noise, *others, **options)

    inputs = many_trees(temperature)
    return compare_verify(replace(core, verify=verify), core, inputs, Verification(method))


@METHODS
def test_rounding_explains_what_lies_at_a_boundary(method: TreeMethod):
    """Would catch a margin that no try finds, and requests that are taken out of their round with other trees."""
    found = compared(method, 1e-5)
    assert found.num_tokens == COUNT and 0 < len(found.disagreements) < 30
    assert all(each.explained for each in found.disagreements)


@METHODS
def test_rounding_does_not_explain_a_larger_error(method: TreeMethod):
    found = compared(method, 1e-3)
    assert sum(not each.explained for each in found.disagreements) > 0.5 * len(found.disagreements) > 20


def test_nothing_is_rounded_at_temperature_0():
    found = compared(TreeMethod.recursive, 1e-3, temperature=0.0)
    assert found.disagreements and not any(each.explained for each in found.disagreements)
