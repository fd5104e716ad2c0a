"""Certification of draft depth runs the engine's own objects, and rejects rules that look at what they leave out."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from harness.checks.certification.controls import controls
from harness.checks.certification.depth_rules import SHARED_BUDGET, SLOTS_OF_STEP, DepthRule, num_admitted
from harness.checks.certification.engine_steps import TABLE, EngineSteps, depth_of
from harness.checks.certification.evaluate import laws
from harness.checks.certification.goodness_of_fit import fit
from harness.checks.certification.simulate import simulate
from harness.checks.certification.subject import project_core
from harness.config.depth import depth_at
from harness.drafters.draft_logits import DraftLogits
from harness.engine.depth import DepthByBatch
from harness.engine.planner import Planner
from harness.models.confidence_head import PredictedConfidence
from tests.support.certify_cases import CASES, CPU

LOSSLESS = [rule for rule in DepthRule if rule.is_lossless]
RULES = pytest.mark.parametrize("rule", LOSSLESS, ids=lambda rule: rule.name)
OF_STEP = pytest.mark.parametrize("rule", [rule for rule in LOSSLESS if rule.is_of_step], ids=lambda rule: rule.name)


def case_of(rule: DepthRule, drafts: str = "block, sampled cached"):
    return CASES[f"{drafts}, float32, none, {rule.value}"]


def p_value(case, num_samples: int = 30_000) -> float:
    simulated = simulate(project_core(CPU), case, num_samples, 10_000, seed=1, device=CPU)
    assert simulated.num_faults == 0 and simulated.num_accepted > 0
    return fit(simulated.counts, laws(case)).p_value


@RULES
@pytest.mark.parametrize("drafts", ["block, sampled cached", "coupled, coupled cached"])
def test_what_the_engine_decides_passes(rule, drafts):
    assert p_value(case_of(rule, drafts)) > 1e-4


@pytest.mark.parametrize(
    ("rule", "owner", "method"),
    [
        (DepthRule.row, DraftLogits, "draft"),
        (DepthRule.head, PredictedConfidence, "at"),
        (DepthRule.survival, PredictedConfidence, "at"),
        (DepthRule.batch, DepthByBatch, "choose"),
        (DepthRule.planner, Planner, "choose"),
        (DepthRule.planner, Planner, "learn"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_case_calls_the_engine_s_object(monkeypatch, rule, owner, method):
    """Would catch a stand-in: nothing but the engine's own code can then be wrong unseen."""
    calls, right = [], getattr(owner, method)

    def counted(self, *arguments, **options):
        calls.append(1)
        return right(self, *arguments, **options)

    monkeypatch.setattr(owner, method, counted)
    simulate(project_core(CPU), case_of(rule), 2000, 500, seed=1, device=CPU)
    assert calls


@OF_STEP
def test_a_depth_that_looks_at_its_own_step_is_rejected(monkeypatch, rule):
    """Would catch engines whose steps are so alike that an object which knew its step's drafts would pass."""
    from harness.checks.certification import simulate as module

    right = module.propose

    def peeking(subject, table, slots, keeps_stats):
        token_ids, states, counts = right(subject, table, slots, keeps_stats)
        # a step that drafted improbable tokens first verifies no drafts
        rows = table.draft_rows[states[:, 0]].softmax(dim=1)
        drawn, steps = rows.gather(1, token_ids[:, :1])[:, 0], slots // SLOTS_OF_STEP
        mean = torch.zeros(int(steps.max()) + 1).scatter_reduce(0, steps, drawn, "mean", include_self=False)
        return token_ids, states, torch.where(mean[steps] < 0.5, 0, counts)

    monkeypatch.setattr(module, "propose", peeking)
    assert p_value(case_of(rule)) < 1e-9


@OF_STEP
def test_engines_choose_every_depth_and_repeat(monkeypatch, rule):
    """Would catch engines that go on in step, a table of which a depth is never taken, and a planner that measures."""
    taken, right = [], EngineSteps.choose

    def kept(self, slots, decodes):
        found = right(self, slots, decodes)
        taken.append(tuple(self._chosen))
        if rule is DepthRule.batch:
            pairs = zip(self._numbers, self._chosen, strict=True)
            assert all(depth == depth_at(TABLE, number) for number, depth in pairs if number)
        return found

    monkeypatch.setattr(EngineSteps, "choose", kept)
    counts = [simulate(project_core(CPU), case_of(rule), 4000, 2000, seed=1, device=CPU).counts for _ in range(2)]
    half = len(taken) // 2
    assert taken[:half] == taken[half:] and torch.equal(*counts)
    share = [sum(row.count(depth) for row in taken) / sum(map(len, taken)) for depth in range(4)]
    assert min(share[1:]) > 0.005


def test_the_first_token_of_a_request_is_drawn_without_drafts():
    """Its step ends the prompt in the engine, and does not count among the requests that decode."""
    engines = EngineSteps(2 * SLOTS_OF_STEP, partial(depth_of, DepthRule.batch, 3))
    slots = torch.arange(2 * SLOTS_OF_STEP)
    decodes = (slots == 3) | (slots >= SLOTS_OF_STEP)
    chosen = engines.choose(slots, decodes)
    assert chosen.tolist() == [3 * (slot == 3) for slot in range(SLOTS_OF_STEP)] + [1] * SLOTS_OF_STEP


def test_the_shared_budget_admits_by_what_the_other_requests_drew():
    """Would catch a budget of each request's own, which is no budget of a step."""
    drawn = torch.full((2 * SLOTS_OF_STEP, 3), 0.5)
    slots = torch.randperm(len(drawn), generator=torch.Generator().manual_seed(0))
    before = num_admitted(drawn, slots)
    steps = slots // SLOTS_OF_STEP
    assert [int(before[steps == step].sum()) for step in (0, 1)] == [SHARED_BUDGET] * 2
    # one request draws improbable tokens, and another of its step gets its place
    changed = drawn.clone()
    changed[slots == 0] = 0.01
    after = num_admitted(changed, slots)
    assert int(after[slots == 0]) == 0 and int(before[slots == 0]) > 0
    assert int(after[(steps == 0) & (slots != 0)].sum()) == SHARED_BUDGET
    assert torch.equal(after[steps == 1], before[steps == 1])


def test_every_wrong_rule_is_a_control_of_probabilistic_and_block():
    found = {(control.case.verification.method.value, control.case.depth_rule) for control in controls()}
    wrong = [rule for rule in DepthRule if not rule.is_lossless]
    assert {(method, rule) for method in ("probabilistic", "block") for rule in wrong} <= found


def test_the_shared_budget_is_rejected_for_what_it_looks_at():
    """The same number of drafts by the rows' confidence, which looks at none of them, passes."""
    control = next(each for each in controls() if each.case.depth_rule is DepthRule.shared_budget)
    assert p_value(control.case) < 1e-9
    assert p_value(replace(control.case, depth_rule=DepthRule.row)) > 1e-4
