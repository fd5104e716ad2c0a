"""Intervals by prompt, the speedup with its baseline, and cells paired by prompt."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.analysis import estimates, intervals
from harness.analysis.cell import analyse
from harness.analysis.columns import with_interval
from harness.analysis.estimates import Estimates, paired, paired_difference, paired_ratio
from harness.records.runs import Run
from tests.support.synthetic_cells import (
    NUM_RESAMPLES,
    analysed,
    baseline_settings,
    config,
    estimates_of,
    row_of,
    simulated_cell,
)

pytestmark = pytest.mark.fast


def test_one_prompt_has_values_and_no_intervals():
    record = simulated_cell(config(), [0.6, 0.5, 0.4], num_prompts=1, num_turns=2)
    row = row_of(record)
    for name in ("acceptance_rate", "output_tokens_per_s", "ttft_p99_ms"):
        assert not np.isnan(row[name]) and np.isnan(row[f"{name}_low"]) and np.isnan(row[f"{name}_high"])


def test_every_interval_holds_its_value_and_is_not_a_point():
    row = row_of(simulated_cell(config(), [0.6, 0.5, 0.4]))
    for name in ("acceptance_rate", "mean_acceptance_length_macro", "output_tokens_per_s", "tpot_p90_ms"):
        value, low, high = (row[column] for column in with_interval(name))
        assert low < value < high


def test_turns_and_copies_of_a_prompt_move_together():
    """The same answers a second time are no new evidence: the interval must not shrink.

    Would catch resampling requests, whose intervals would be narrower by the square root of 2.
    """
    once = simulated_cell(config(), [0.6, 0.5, 0.4])
    twice = replace(once, requests=(*once.requests, *(replace(item, sample=1) for item in once.requests)))
    names = with_interval("acceptance_rate")
    assert list(row_of(twice)[list(names)]) == pytest.approx(list(row_of(once)[list(names)]), rel=1e-12)


def cell_and_baseline(seed=1):
    record = simulated_cell(config(), [0.6, 0.5, 0.4], seed=seed)
    baseline = simulated_cell(baseline_settings(), [], num_rounds=60)
    return analysed(baseline, record)


def test_speedup_is_the_ratio_of_throughputs_with_the_baseline_of_the_run():
    baseline, cell = cell_and_baseline()
    ratio = cell.estimate("output_tokens_per_s").value / baseline.estimate("output_tokens_per_s").value
    assert cell.speedup.value == pytest.approx(ratio, rel=1e-12)
    assert cell.speedup.low < ratio < cell.speedup.high
    assert baseline.speedup == (1, 1, 1)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"decoding__temperature": 0.0}, id="temperature"),
        pytest.param({"decoding__max_new_tokens": 8}, id="length"),
        pytest.param({"workload__path": "prompts.jsonl"}, id="prompts"),
        pytest.param({"backend__max_concurrency": 1}, id="concurrency"),
        pytest.param({"target__path": "other"}, id="target"),
        pytest.param({"seed": 1}, id="seed"),
    ],
)
def test_a_baseline_with_other_settings_is_not_used(changes):
    """Would catch a speedup against a baseline that answered other prompts or ran in another way."""
    record = simulated_cell(config(), [0.6, 0.5, 0.4])
    other = simulated_cell(baseline_settings(**changes), [], num_rounds=60)
    cell = analysed(other, record)[1]
    assert cell.baseline is None and np.isnan(cell.speedup.value)


def test_a_baseline_of_another_run_is_not_used():
    baseline, cell = cell_and_baseline()
    runs = [Run("a", Path(), {}, (baseline.record,)), Run("b", Path(), {}, (cell.record,))]
    assert analyse(runs)[1].baseline is None


def test_pairs_meet_the_same_resamples(monkeypatch):
    """The difference of a cell with itself is exactly 0 in every resample, and both sides ask for the same weights.

    Would catch independent resampling of the two cells of a pair.
    """
    first = estimates_of(simulated_cell(config(), [0.6, 0.5, 0.4], seed=1))
    second = estimates_of(simulated_cell(config(), [0.6, 0.5, 0.4], seed=2))
    assert first.weights is second.weights
    assert paired_difference(
        first, estimates_of(simulated_cell(config(), [0.6, 0.5, 0.4], seed=1)), "acceptance_rate"
    ) == (0, 0, 0)

    used = []
    original = intervals.resample_weights
    monkeypatch.setattr(estimates, "resample_weights", lambda *size: used.append(original(*size)) or used[-1])
    fresh = [Estimates(item.sums, NUM_RESAMPLES, 0.95) for item in (first, second)]
    paired_ratio(*fresh, "output_tokens_per_s")
    assert len(used) == 2 and used[0] is used[1]


def test_paired_differences_are_narrower_when_prompts_dominate():
    """Would catch differences of separate intervals, which count the variation between prompts twice."""
    first = estimates_of(simulated_cell(config(), [0.55, 0.5, 0.4], num_rounds=200, seed=1, spread=0.4))
    second = estimates_of(simulated_cell(config(), [0.60, 0.5, 0.4], num_rounds=200, seed=2, spread=0.4))
    name = "mean_acceptance_length"
    difference = paired_difference(first, second, name)
    assert difference.value == pytest.approx(second.estimate(name).value - first.estimate(name).value, rel=1e-9)
    separate = sum(item.estimate(name).high - item.estimate(name).low for item in (first, second))
    assert difference.high - difference.low < 0.4 * separate
    assert difference.low > 0


def test_a_pair_is_restricted_to_the_prompts_in_common():
    """Would catch cells compared on different prompts where one of them had to leave prompts out."""
    record = simulated_cell(config(), [0.6, 0.5, 0.4], seed=1)
    fewer = replace(record, requests=record.requests[10:])
    first, second = paired(estimates_of(record), estimates_of(fewer))
    assert first.sums.prompt_ids == second.sums.prompt_ids and first.num_prompts == 30
    assert paired_difference(first, second, "acceptance_rate") == (0, 0, 0)
    assert paired_difference(first, second, "ttft_p90_ms") == (0, 0, 0)
    assert first.distribution("itl_p50_ms")[0] == estimates_of(fewer).distribution("itl_p50_ms")[0]
