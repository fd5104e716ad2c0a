"""Comparing cores on trees of drafts: rounding explains what lies at a boundary, and nothing else."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from harness.checks.agreement.compare import compare_verify
from harness.checks.agreement.config import AgreementConfig, Candidate
from harness.checks.agreement.counts import ROUNDING, Agreement
from harness.checks.agreement.round_inputs import ChildDraws, RoundInputs
from harness.checks.agreement.rows import RoundShape
from harness.checks.agreement.run import CaseResult, cases_of, compare_case
from harness.checks.agreement.tree_margin import child_margins
from harness.checks.agreement.tree_rows import FIXED, RAGGED, drafted_trees
from harness.config.device import Device
from kernels.contract import Draft, Sampling, SiblingDraws, Streams, Verification, VerificationResult
from kernels.core import Core, reference_core, triton_core
from kernels.methods import DraftSampling, TreeMethod
from kernels.random.streams import Purpose, uniform
from kernels.reference.draw_children import draw_children
from kernels.reference.verify import verify
from tests.support.kernel_rounds import DEVICE

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


def config_of(core: Candidate = Candidate.reference, **settings: Any) -> AgreementConfig:
    settings = {"vocab_size": 400, "requests": 10} | settings
    return AgreementConfig(core, Device.cpu, **settings)


TREES = [case for case in cases_of(config_of()) if case.siblings is not None]
UNCUT = [case for case in TREES if case.truncation == "none"]


def result_of(core: Core, case: Any, **settings: Any) -> CaseResult:
    return compare_case(case, config_of(**settings), core, 1)


def test_every_way_to_draft_trees_is_compared_in_every_truncation():
    """Would catch a method for trees that the command leaves out, as chains alone did."""
    found = {(case.method, case.siblings, case.one_hot) for case in TREES}
    sampled = {(method, each, False) for method in TreeMethod for each in method.traits.siblings}
    certain = {method for method in TreeMethod if DraftSampling.greedy in method.traits.draft_samplings}
    assert found == sampled | {(method, SiblingDraws.distinct, True) for method in certain}
    for name in ("dtype", "truncation", "temperature"):
        assert {getattr(case, name) for case in TREES} == {getattr(case, name) for case in cases_of(config_of())}
    assert len({case.name for case in TREES}) == len(TREES) == 5 * len(found)


@pytest.mark.parametrize("case", UNCUT, ids=lambda case: case.name)
def test_the_kernels_agree_on_trees(case):
    """Of several chunks, fixed ones and ragged ones in a batch."""
    config = config_of(vocab_size=2200, requests=5)
    config = replace(config, device=Device(DEVICE.type))
    found = compare_case(case, config, triton_core(), 1)
    assert found.agreement.num_unexplained == 0
    assert found.verification.num_tokens == 10 and found.drafting.num_tokens > 20


def independent_children(logits, sampling, streams, siblings, *others, **options):
    return draw_children(logits, sampling, streams, SiblingDraws.independent, *others, **options)


def warm_children(logits, sampling, *others, **options):
    """Children at a temperature that is 1 % off."""
    return draw_children(logits, replace(sampling, temperature=sampling.temperature * 1.01), *others, **options)


def as_independent(target_logits, draft, *others, **options):
    return verify(target_logits, replace(draft, siblings=SiblingDraws.independent), *others, **options)


def of_one_level(target_logits, draft, *others, **options):
    return verify(target_logits, replace(draft, parents=torch.full_like(draft.parents, -1)), *others, **options)


@pytest.mark.parametrize(
    ("wrong", "part"),
    [
        ({"draw_children": independent_children}, "drafting"),
        ({"draw_children": warm_children}, "drafting"),
        ({"verify": as_independent}, "verification"),
        ({"verify": of_one_level}, "verification"),
    ],
    ids=["independent for distinct", "warmer", "verified as independent", "parents forgotten"],
)
def test_a_core_that_is_wrong_with_trees_is_found_out(wrong: dict[str, Any], part: str):
    case = next(case for case in UNCUT if case.siblings is SiblingDraws.distinct and not case.one_hot)
    assert result_of(reference_core(), case, requests=100).agreement.num_disagreements == 0
    found = result_of(replace(reference_core(), **wrong), case, requests=100)
    assert getattr(found, part).num_unexplained > 0


@pytest.mark.parametrize("siblings", [SiblingDraws.independent, SiblingDraws.distinct])
def test_the_neighbour_of_a_child_is_explained_at_its_boundary_alone(siblings: SiblingDraws):
    """Would catch a margin that is found by noise on the logits, which averages out in rows that are flat."""
    rows, vocab_size = 4000, 200
    sampling = Sampling.same_for_all(rows, 1.0, 0, 1.0, 0.0)
    streams = Streams(torch.arange(rows), torch.zeros(rows, dtype=torch.int64), torch.zeros(rows, dtype=torch.int64))
    branches = torch.tensor([[0, 1]]).expand(rows, 2).contiguous()
    inputs = ChildDraws(torch.zeros(rows, vocab_size), sampling, streams, siblings, branches)
    expected = inputs.drawn_by(reference_core())
    assert float(child_margins(inputs, expected).max()) == 0
    place = uniform(streams.seeds, Purpose.draft, streams.positions, streams.rounds, branches[:, 0]) * vocab_size
    found = expected.clone()
    found[:, 0] -= 1
    beyond = place - place.floor()
    is_other = (found[:, 0] >= 0) & (found[:, 0] != found[:, 1])
    margins = child_margins(inputs, found)
    near, far = (beyond < 2e-3) & is_other, (beyond > 1e-2) & is_other
    if siblings is SiblingDraws.independent:
        assert int(near.sum()) > 3 and float(margins[near].max()) <= ROUNDING
    assert float(margins[far].min()) > ROUNDING


@pytest.mark.parametrize("one_hot", [False, True], ids=["sampled", "one-hot"])
@pytest.mark.parametrize("trees", [FIXED, RAGGED], ids=["fixed", "ragged"])
def test_trees_are_drawn_as_the_engine_draws_them(trees, one_hot: bool):
    """Would catch children of another row, position or branch than verification takes them for, and siblings alike."""
    shape = RoundShape(300, 6, 50, torch.float32, one_hot=one_hot)
    batch = drafted_trees(shape, trees, SiblingDraws.distinct, reference_core(), torch.Generator().manual_seed(0))
    draft = batch.inputs.draft
    assert draft.parents is not None
    assert draft.num_draft_tokens[: len(trees)].tolist() == [len(tree) for tree in trees]
    assert len(batch.inputs.target_logits) == int((draft.num_draft_tokens + 1).sum())
    for request in range(2 * len(trees)):
        tree = trees[request % len(trees)]
        children = [[int(draft.token_ids[request, place]) for place in range(len(tree)) if tree[place] == node]
                    for node in range(-1, len(tree))]  # fmt: skip
        assert all(len(set(each)) == len(each) for each in children)
    found = batch.inputs.verified_by(reference_core(), Verification(TreeMethod.recursive))
    share = float(found.num_accepted.float().mean())
    assert not bool(found.invalid.any()) and 0.5 < share < 2.0
