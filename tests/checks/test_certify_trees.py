"""Certification of trees: right rules pass over several rounds, and every control is rejected, with few requests."""

from dataclasses import replace

import pytest
import torch

from harness.checks.certification.config import CertifyConfig, Size
from harness.checks.certification.evaluate import SPREAD_TREE_BATCH, CaseVerdict, Conditions, evaluate, laws
from harness.checks.certification.goodness_of_fit import detectable_variation
from harness.checks.certification.subject import Features, reference
from harness.checks.certification.tree_cases import SHAPES, WAYS, spread_tree_cases, tree_cases, tree_controls
from kernels.launch.register_limits import programs_at_once
from kernels.launch.workspace import CHUNK
from kernels.methods import DraftSampling, TreeMethod
from kernels.tree.walk import PARTS

DEVICE = torch.device("cpu")
CONDITIONS = Conditions(CertifyConfig(samples=20_000, batch=5_000), Size.small, 1e-8, DEVICE)


@pytest.mark.parametrize("case", tree_cases(False)[::2], ids=lambda case: case.name)
def test_right_rules_pass(case):
    """Drafts by the real sampler and streams, slots used again. The others run in `make certify`."""
    found = evaluate(reference(DEVICE), case, CONDITIONS)
    assert found.verdict is CaseVerdict.passed, found.reason
    assert 0.1 < found.acceptance_rate < 0.6 and found.num_faults == 0


@pytest.mark.parametrize("control", tree_controls(), ids=lambda control: control.name)
def test_controls_are_rejected(control):
    assert evaluate(reference(DEVICE), control, CONDITIONS).verdict is CaseVerdict.rejected


def test_every_way_is_certified_with_every_shape_and_only_by_who_verifies_trees():
    cases = tree_cases(True)
    assert len({case.name for case in cases}) == len(cases) == 75
    for way in WAYS:
        mine = [
            case
            for case in cases
            if (case.verification.method, case.draft_sampling, case.siblings) == way and case.dynamic_tree is None
        ]
        assert {case.trees[0] for case in mine if len(case.trees) == 1} == set(SHAPES.values())
        assert {case.dtype for case in mine if len(case.trees) > 1} == {"float32", "bfloat16", "float16"}
    assert {method for method, _, _ in WAYS} == set(TreeMethod)
    certain = {method for method in TreeMethod if DraftSampling.greedy in method.traits.draft_samplings}
    assert {case.verification.method for case in cases if case.dynamic_tree} == certain
    assert all(case.lacking(Features()) == f"no method {case.verification.method.value}" for case in cases)
    assert all(case.lacking(reference(DEVICE).features) is None for case in cases)


@pytest.mark.parametrize("case", spread_tree_cases(), ids=lambda case: case.name)
def test_rows_are_shared_by_several_programs(case):
    """Would catch ids that lie in one program's chunks alone, and batches so large that a request has one program."""
    assert case.models.token_ids is not None
    groups = {int(token) // (PARTS * CHUNK) for token in case.models.token_ids}
    assert groups == {0, 1, 2, 3} and -(-case.models.num_ids // (PARTS * CHUNK)) == 4
    # the kernels of most registers on 132 multiprocessors
    assert programs_at_once(PARTS, 255) * 132 // SPREAD_TREE_BATCH >= 4


def test_a_right_rule_passes_in_rows_that_several_programs_share():
    conditions = replace(CONDITIONS, config=CertifyConfig(samples=1000, batch=500))
    found = evaluate(reference(DEVICE), spread_tree_cases()[0], conditions)
    assert found.verdict is CaseVerdict.passed, found.reason
    assert found.is_spread and found.acceptance_rate > 0.1


def test_the_small_size_detects_what_its_page_says():
    """A total variation of .04 with 50,000 requests."""
    for case in tree_cases(False):
        law = laws(case)
        found = detectable_variation(50_000, 1e-6 / 10 / 60, int((law > 0).sum()) - len(law), 0.99)
        assert found < 0.04
