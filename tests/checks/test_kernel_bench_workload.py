"""The batches of the kernel benchmark: rows like a language model's, drafts as close as was asked for."""

from dataclasses import replace

import pytest
import torch

from harness.checks.kernel_bench.case import Acceptance, Case, RowKind, Truncation, Work
from harness.checks.kernel_bench.cases import cases_of, headline_cases
from harness.checks.kernel_bench.config import Preset
from harness.checks.kernel_bench.drafter_error import GOALS, error_for, mean_accepted
from harness.checks.kernel_bench.measure import count_rows, count_tree_rows
from harness.checks.kernel_bench.rows import KEPT_PART, head_of, llm_rows, num_kept
from harness.checks.kernel_bench.tree_workload import make_tree_round
from harness.checks.kernel_bench.workload import constant_rate, make_round, verification_of
from kernels.contract import NO_TOKEN, Draft, DraftSampling, VerificationMethod, VerificationResult
from kernels.core import reference_core
from kernels.methods import SiblingDraws, TreeMethod

CPU = torch.device("cpu")
VOCAB_SIZE = 4000
Method = VerificationMethod


def test_rows_keep_as_many_tokens_as_they_should_and_peak_near_20():
    head = head_of(RowKind.wide, 16_000, CPU)
    rows = llm_rows(200, 16_000, head, torch.Generator().manual_seed(3))
    goal = KEPT_PART[RowKind.wide] * 16_000
    # the median of 200 wobbles has a standard error of 0.09, and a wobble of 1 changes the number by a factor of 2.5
    assert 0.7 * goal < float(num_kept(rows).float().median()) < 1.3 * goal
    assert 18 < float(rows.amax(dim=1).mean()) < 22


def test_the_same_seed_gives_the_same_rows():
    first, second = (llm_rows(3, 500, 12.0, torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("acceptance", "temperature", "rows"),
    [(each, temperature, RowKind.wide) for each in Acceptance for temperature in (0.0, 0.7)]
    + [(Acceptance.mid, 0.7, RowKind.noise)],
)
def test_a_round_accepts_as_many_tokens_as_was_asked_for(acceptance, temperature, rows):
    case = Case(num_requests=128, vocab_size=VOCAB_SIZE, acceptance=acceptance, temperature=temperature, rows=rows)
    core = reference_core()
    inputs = make_round(case, core, seed=5, device=CPU)
    verdict = core.verify(inputs.target_logits, inputs.draft, inputs.sampling, verification_of(case), inputs.streams)
    # 64 requests set the error and 128 are counted: both have a standard error of at most 1.5 / sqrt(64)
    assert abs(float(verdict.num_accepted.double().mean()) - GOALS[acceptance]) < 3 * 1.5 / 8
    assert not verdict.invalid.any()


def test_a_small_batch_is_not_far_from_the_goal_and_the_same_for_every_method():
    batches = [
        make_round(Case(num_requests=16, vocab_size=1000, method=method), reference_core(), seed=seed, device=CPU)
        for method in (Method.probabilistic, Method.block)
        for seed in (0, 1, 2)
    ]
    for inputs in batches:
        verdict = reference_core().verify(
            inputs.target_logits, inputs.draft, inputs.sampling, verification_of(Case()), inputs.streams
        )
        # eight tries with a standard error of 0.3: all further away than this about once in 10^7
        assert abs(float(verdict.num_accepted.double().mean()) - GOALS[Acceptance.mid]) < 0.5
    assert torch.equal(batches[0].draft.token_ids, batches[3].draft.token_ids)


def test_the_closed_form_meets_its_goal():
    case = Case(vocab_size=VOCAB_SIZE)
    error = error_for(case, CPU)
    assert abs(mean_accepted(error, case, CPU) - GOALS[Acceptance.mid]) < 0.01
    assert mean_accepted(2 * error, case, CPU) < mean_accepted(error / 2, case, CPU)


def test_truncated_drafts_lie_inside_what_was_kept():
    case = Case(num_requests=20, vocab_size=VOCAB_SIZE, truncation=Truncation.top_p)
    inputs = make_round(case, reference_core(), seed=2, device=CPU)
    drafted = inputs.draft.logits[inputs.draft.idx_mapping].gather(2, inputs.draft.token_ids[..., None])[..., 0]
    assert (drafted >= inputs.draft.row_stats.threshold[inputs.draft.idx_mapping]).all()


def test_one_hot_drafts_have_no_cache():
    case = Case(num_requests=4, vocab_size=100, draft_sampling=DraftSampling.greedy)
    draft = make_round(case, reference_core(), seed=2, device=CPU).draft
    assert draft.logits is None and draft.row_stats is None and draft.idx_mapping is None


def test_synthetic_rates_add_up_to_the_goal():
    for acceptance in Acceptance:
        rate = constant_rate(acceptance)
        assert rate + rate**2 + rate**3 == pytest.approx(GOALS[acceptance])


@pytest.mark.parametrize(
    ("changes", "all_rows", "needed"),
    [
        # accepted 0, 1, 3 of 3: two rejections, 12 target rows, of which 1 + 2 + 4 decide
        ({}, 12 + 2 * 2, 7 + 2 * 2),
        ({"method": Method.lenient}, 12 + 4, 7 + 4),
        ({"method": Method.strict}, 12, 7),
        ({"method": Method.typical}, 12, 7),
        ({"temperature": 0.0}, 12, 7),
        ({"draft_sampling": DraftSampling.greedy}, 12, 7),
        ({"method": Method.synthetic}, 12, 3),
        # every draft position, one bonus row, and pairs after the last accepted one: 3 + 2 + 0
        ({"method": Method.block}, 12 + 2 * 5, 10 + 2 * 5),
    ],
    ids=["probabilistic", "lenient", "strict", "typical", "greedy", "one-hot", "synthetic", "block"],
)
def test_rows_are_counted_by_hand(changes, all_rows, needed):
    case = replace(Case(num_requests=3, vocab_size=10), **changes)
    assert count_rows(case, torch.tensor([0, 1, 3])) == (all_rows, needed)


def test_rows_of_trees_are_counted_by_hand():
    """Of 2-2, whose places are 0 1, 2 3 below 0 and 4 5 below 1: nothing accepted; 1 and then nothing below it, where
    the second child is none; 0 and then 3."""
    case = Case(num_requests=3, width=6, vocab_size=10, method=TreeMethod.recursive, tree="2-2", keeps_statistics=False)
    path = torch.tensor([[-1] * 6, [1] + [-1] * 5, [0, 3] + [-1] * 4])
    token_ids = torch.zeros(3, 6, dtype=torch.int64)
    token_ids[1, 5] = NO_TOKEN
    draft = Draft(token_ids, torch.full((3,), 6), torch.zeros(3, 6, 10))
    found = VerificationResult(token_ids, torch.tensor([0, 1, 2]), torch.zeros(3, dtype=torch.bool), path=path)
    # targets 1 + 2 + 3, rows of drafts 1 + 2 + 2, rejected 2 + (1 + 1) + (0 + 1)
    assert count_tree_rows(case, draft, found) == (21 + 9 + 2 * 5, 6 + 5 + 2 * 5)
    assert count_tree_rows(replace(case, temperature=0.0), draft, found) == (21, 6)
    # kseq weighs for discounts the context of each and node 0, for residuals the context of the first and node 1
    together = replace(case, method=TreeMethod.kseq, siblings=SiblingDraws.independent)
    assert count_tree_rows(together, draft, found) == (21 + 9 + 2 * 6, 6 + 5 + 2 * 6)
    # traversal deletes 2 3 0 4 5 1, then 2 3 0 4, then 2: inner nodes are 0 and 1, and 0
    traversed = replace(case, method=TreeMethod.traversal)
    assert count_tree_rows(traversed, draft, found) == (21 + 9 + 2 * 11, 9 + 8 + 2 * 11)
    assert count_tree_rows(replace(traversed, temperature=0.0), draft, found) == (21, 9)


def test_the_reference_verifies_the_trees_of_a_case():
    case = Case(
        num_requests=20, width=6, vocab_size=500, method=TreeMethod.recursive, tree="2-2", keeps_statistics=False
    )
    inputs = make_tree_round(case, seed=1, device=CPU)
    found = inputs.verified_by(reference_core(), verification_of(case))
    assert set(found.num_accepted.tolist()) == {0, 1, 2} and not found.invalid.any()


def test_a_draw_reads_its_rows_once():
    assert count_rows(Case(work=Work.draw, width=0, num_requests=7), None) == (7, 7)


def test_the_full_preset_holds_the_headline_and_varies_one_factor_at_a_time():
    cases = cases_of(Preset.full)
    assert set(headline_cases()) <= set(cases)
    assert len(set(cases)) == len(cases) == len({case.name for case in cases})
    assert {case.method for case in cases} == set(Method) | set(TreeMethod)
    assert {case.num_requests for case in cases} >= {1, 1024} and {case.width for case in cases} >= set(range(1, 9))
