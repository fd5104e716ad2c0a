"""Certification on the reference: it passes what is right and fails what is wrong, and covers every kind of case."""

from dataclasses import replace

import pytest
import torch

from harness.checks.certification.cases import DRAFTS, RAGGED, full_cases, small_cases
from harness.checks.certification.controls import controls
from harness.checks.certification.depth_rules import DepthRule
from harness.checks.certification.evaluate import FALSE_ALARM, laws
from harness.checks.certification.goodness_of_fit import fit
from harness.checks.certification.simulate import simulate
from harness.checks.certification.subject import project_core, reference
from kernels.methods import DraftSampling, Guarantee, methods_with
from tests.support.certify_cases import CASES, CPU, SPREAD

NUM_SAMPLES, BATCH = 60_000, 15_000
LEVEL = FALSE_ALARM / 100


def p_value(subject, case, num_samples: int = NUM_SAMPLES) -> float:
    simulated = simulate(subject, case, num_samples, BATCH, seed=1, device=CPU)
    assert simulated.num_faults == 0 and simulated.num_accepted > 0, "a case without drafts shows nothing"
    return fit(simulated.counts, laws(case)).p_value


@pytest.mark.parametrize("control", controls(), ids=lambda control: control.name)
def test_control_is_rejected(control):
    assert p_value(control.alter(project_core(CPU)), control.case) < LEVEL


BROKEN = [control for control in controls() if control.case.verification.guarantee is Guarantee.lossless]


@pytest.mark.parametrize("control", BROKEN, ids=lambda control: control.name)
def test_what_the_control_was_made_from_passes(control):
    sampling = control.case.draft_sampling
    right = replace(
        control.case,
        cache_dtype=None,
        draft_sampling=DraftSampling.sampled if sampling is DraftSampling.coupled else sampling,
        depth_rule=control.case.depth_rule and DepthRule.row,
    )
    assert p_value(project_core(CPU), right, BATCH) > 1e-4


@pytest.mark.parametrize(
    "name",
    [
        "block, sampled cached, float32, none",
        "block, sampled cached, bfloat16, mixed, ragged, padded slots",
        "probabilistic, sampled cached, float16, none, narrow draft",
        "coupled, coupled cached, float32, top-p",
        "block, sampled cached, float32, none, stats not kept, narrow draft, grammar",
        "probabilistic, sampled cached, float32, top-k, ragged, padded slots, wide, grammar",
    ],
)
def test_a_right_sampler_passes(name):
    """Of other layouts and types than the controls; `make certify` simulates all cases with more requests."""
    assert p_value(project_core(CPU), CASES[name], 2 * BATCH) > 1e-4


@pytest.mark.parametrize("name", SPREAD)
def test_a_right_sampler_passes_in_a_spread_vocabulary(name):
    simulated = simulate(project_core(CPU), CASES[name], 640, 160, seed=1, device=CPU)
    assert simulated.num_faults == 0
    assert fit(simulated.counts, laws(CASES[name])).p_value > 1e-4


def test_a_token_that_is_none_of_the_pair_s_is_a_fault():
    """Would catch a kernel that is off by one id at the edge of a chunk."""
    right = project_core(CPU)

    def verify(target_logits, draft, sampling, verification, streams):
        verdict = right.verify(target_logits, draft, sampling, verification, streams)
        last = verdict.num_accepted[:, None]
        token_ids = verdict.token_ids.scatter(1, last, verdict.token_ids.gather(1, last) - 1)
        return replace(verdict, token_ids=token_ids)

    simulated = simulate(replace(right, verify=verify), CASES[SPREAD[0]], 64, 16, seed=1, device=CPU)
    assert simulated.num_faults > 64


def test_every_lossless_method_is_certified_and_every_kind_of_draft_and_dtype():
    for cases in (small_cases(), full_cases()):
        methods = {case.verification.method for case in cases}
        assert methods_with(lambda traits: traits.guarantee is Guarantee.lossless) <= methods
        assert {case.draft_sampling for case in cases} == set(DraftSampling)
        assert {case.dtype for case in cases} == {"float32", "bfloat16", "float16"}
        assert {case.truncation for case in cases} == {"none", "top-k", "top-p", "min-p", "mixed", "some cut"}


def test_temperatures_are_certified_where_nothing_is_cut():
    """By every way to draft and verify; a core that forgets one is among the controls. At 1 it would go unnoticed."""
    for cases in (small_cases(), full_cases()):
        warm = {
            (case.verification.method, case.draft_sampling, case.cached)
            for case in cases
            for profile in case.profiles
            if not profile.truncates and profile.temperature not in (0, 1)
        }
        assert set(DRAFTS) <= warm


def test_all_requests_are_counted_once_and_profiles_and_halves_alike():
    case = CASES["probabilistic, greedy one-hot, bfloat16, mixed, ragged, padded slots"]
    num_requests = 4 * 2 * len(RAGGED) * 7 * 4
    simulated = simulate(reference(CPU), case, num_requests, BATCH, seed=0, device=CPU)
    assert simulated.counts.sum(2).tolist() == [[num_requests // 8] * 2] * 4


def test_a_run_is_a_function_of_its_seed():
    case = CASES["block, sampled cached, float32, none"]
    first, again, other = (simulate(reference(CPU), case, 4000, 500, seed, CPU).counts for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    "overwrite",
    [
        lambda logits, draft: logits.mul_(1),
        lambda logits, draft: logits.mul_(2),
        lambda logits, draft: draft.logits.mul_(2),
        lambda logits, draft: draft.token_ids.clamp_(max=1),
    ],
    ids=["with the same", "target rows", "cache", "drafts"],
)
def test_a_subject_that_overwrites_its_inputs_is_at_fault(overwrite, request):
    """Would catch a sampler that scales the logits in place, after which nothing else can read them."""
    right = reference(CPU)

    def verify(target_logits, draft, *others):
        verdict = right.verify(target_logits, draft, *others)
        overwrite(target_logits, draft)
        return verdict

    case = CASES["probabilistic, sampled cached, float32, none"]
    simulated = simulate(replace(right, verify=verify), case, 640, 160, seed=1, device=CPU)
    assert (simulated.num_faults > 0) is (request.node.callspec.id != "with the same")
