"""Definitions on examples computed by hand, identities between them, and the row of a cell."""

import math
from dataclasses import replace

import numpy as np
import pytest

from harness.analysis.estimates import paired_difference
from harness.analysis.sums import cell_sums
from harness.records.request import CutReason, RoundRecord
from tests.support.synthetic_cells import (
    analysed,
    baseline_settings,
    cell_record,
    config,
    estimates_of,
    request_record,
    round_record,
    row_of,
    simulated_cell,
)

pytestmark = pytest.mark.fast


def worked_example():
    """Variable K, a round cut by EOS, and one near the length limit; every number below is computed by hand."""
    first = [
        round_record(0, 0, 0.5),
        round_record(3, 2, 1.0),
        round_record(3, 0, 1.2),
        round_record(2, 2, 2.0, num_output=3, num_proposed=4, cut=CutReason.eos),
    ]
    second = [round_record(0, 0, 0.25), round_record(3, 3, 1.0), round_record(1, 0, 1.5, num_proposed=3)]
    return cell_record(
        [request_record(first, "a"), request_record(second, "b", submitted_s=0.05, num_prompt_tokens=20)], wall_s=4.0
    )


EXPECTED = {
    "num_requests": 2,
    "num_rounds": 7,
    "num_drafts": 5,
    "num_full_drafts": 3,
    "num_draft_tokens": 12,
    "num_accepted_tokens": 7,
    "num_output_tokens": 14,
    "num_prompt_tokens": 30,
    "num_cut_eos": 1,
    "num_cut_length": 0,
    "acceptance_rate": 7 / 12,
    "mean_acceptance_length": 1 + 7 / 5,
    "full_draft_length": 1 + (2 + 0 + 3) / 3,
    "drafts_left_out": 2 / 5,
    "mean_acceptance_length_macro": ((1 + 4 / 3) + (1 + 3 / 2)) / 2,
    "tokens_per_forward": 14 / 7,
    "num_draft_tokens_per_pos_1": 5,
    "num_draft_tokens_per_pos_2": 4,
    "num_draft_tokens_per_pos_3": 3,
    "num_accepted_tokens_per_pos_1": 3,
    "num_accepted_tokens_per_pos_2": 3,
    "num_accepted_tokens_per_pos_3": 1,
    "num_reached_per_pos_1": 5,
    "num_reached_per_pos_2": 3,
    "num_reached_per_pos_3": 2,
    "acceptance_rate_per_pos_1": 3 / 5,
    "acceptance_rate_per_pos_2": 3 / 4,
    "acceptance_rate_per_pos_3": 1 / 3,
    "conditional_acceptance_rate_per_pos_1": 3 / 5,
    "conditional_acceptance_rate_per_pos_2": 3 / 3,
    "conditional_acceptance_rate_per_pos_3": 1 / 2,
    "wall_s": 4.0,
    "output_tokens_per_s": 14 / 4,
    "total_tokens_per_s": 44 / 4,
    "requests_per_s": 2 / 4,
    "ttft_mean_ms": 1e3 * (0.5 + 0.2) / 2,
    "tpot_mean_ms": 1e3 * (1.5 / 7 + 1.25 / 5) / 2,
    "itl_mean_ms": 1e3 * (0.5 + 0.2 + 0.8 + 0.75 + 0.5) / 5,
    "itl_p50_ms": 500.0,
    "itl_p90_ms": 1e3 * (0.75 + 0.6 * 0.05),
    "e2e_mean_ms": 1e3 * (2.0 + 1.45) / 2,
}


@pytest.mark.parametrize("name", EXPECTED)
def test_definitions_on_the_worked_example(name):
    """Would catch the bonus token counted as accepted, the prefill counted as a draft, per-position rates divided by
    the number of drafts, shortened drafts among the full ones, inter-token latency per token instead of per arrival,
    and averaged per-request throughput.
    """
    assert row_of(worked_example())[name] == pytest.approx(EXPECTED[name], rel=1e-12)


def test_bounds_are_over_the_drafts_that_reached_their_position():
    """Would catch the bound of a position averaged over rounds that rejected an earlier one, in the share as well;
    unknown, it is no 0."""
    rounds = [
        round_record(0, 0, 0.1),
        round_record(2, 2, 0.2, position_bounds=(0.9, 0.8)),
        round_record(2, 0, 0.3, position_bounds=(0.5, 0.1)),
        round_record(1, 1, 0.4, num_proposed=2, position_bounds=(0.7,), cut=CutReason.length),
    ]
    row = row_of(cell_record([request_record(rounds)]))
    assert row["acceptance_bound_per_pos_1"] == pytest.approx((0.9 + 0.5 + 0.7) / 3)
    assert row["acceptance_bound_per_pos_2"] == pytest.approx(0.8 / 2)
    assert row["conditional_acceptance_bound_per_pos_2"] == pytest.approx(0.8)
    assert row["share_of_bound"] == pytest.approx((2 + 0 + 1) / (0.9 + 0.8 + 0.5 + 0.7))
    without = row_of(cell_record([request_record([*rounds[:2], round_record(2, 0, 0.3)])]))
    assert math.isnan(without["acceptance_bound_per_pos_1"]) and math.isnan(without["share_of_bound"])


def test_a_draft_that_begins_with_an_end_of_sequence_is_left_out_too():
    """Would catch the share taken over the drafts that count at all, and rounds without a proposal among them."""
    rounds = [round_record(0, 0, 0.1), round_record(2, 1, 0.2), round_record(0, 0, 0.3, num_proposed=2)]
    row = row_of(cell_record([request_record(rounds)]))
    assert row["num_drafts"] == 1 and row["drafts_left_out"] == 1 / 2


def test_positions_of_a_tree_are_its_depths():
    """Would catch a rate divided by the number of nodes, and a denominator with depths that do not count."""
    rounds = [
        round_record(0, 0, 0.1, path=(), num_draft_positions=0),
        round_record(6, 2, 0.2, path=(1, 4), num_draft_positions=2),
        round_record(6, 0, 0.3, path=(), num_draft_positions=2),
        # an end of sequence was drafted at depth 2, and another node of that depth accepted
        round_record(2, 1, 0.4, num_proposed=6, num_output=3, path=(0, 2), num_draft_positions=1),
    ]
    row = row_of(cell_record([request_record(rounds)]))
    assert row["num_draft_tokens"] == 14 and row["num_full_drafts"] == 2 and row["num_drafts"] == 3
    assert row["drafts_left_out"] == pytest.approx(1 / 3)
    assert [row[f"num_draft_tokens_per_pos_{depth}"] for depth in (1, 2)] == [3, 2]
    assert [row[f"acceptance_rate_per_pos_{depth}"] for depth in (1, 2)] == [pytest.approx(2 / 3), 1 / 2]
    assert row["conditional_acceptance_rate_per_pos_2"] == 1.0
    assert row["mean_acceptance_length"] == 2.0 and row["acceptance_rate"] == pytest.approx(3 / 14)
    assert "acceptance_rate_per_pos_3" not in row


def test_identities_with_constant_depth():
    """a_i = c_1 * .. * c_i and length = 1 + a_1 + .. + a_K hold exactly when every round drafts K tokens."""
    row = row_of(simulated_cell(config(drafting__num_speculative_tokens=4), [0.7, 0.6, 0.5, 0.4]))
    unconditional = [row[f"acceptance_rate_per_pos_{i}"] for i in range(1, 5)]
    conditional = [row[f"conditional_acceptance_rate_per_pos_{i}"] for i in range(1, 5)]
    np.testing.assert_allclose(unconditional, np.cumprod(conditional), rtol=1e-12)
    assert row["mean_acceptance_length"] == pytest.approx(1 + sum(unconditional), rel=1e-12)
    assert row["acceptance_rate"] == pytest.approx(np.mean(unconditional), rel=1e-12)


def test_full_drafts_do_not_depend_on_the_length_limit():
    """All tokens accepted, K = 4, and two limits: 4 of 5 drafts are full with the one, 1 of 2 with the other.

    Would catch shortened drafts mixed in, which lowers the length where K / max_new_tokens is large.
    """
    short, long = (shortened_cell(num_full) for num_full in (1, 4))
    assert row_of(short)["full_draft_length"] == row_of(long)["full_draft_length"] == 5
    assert row_of(short)["mean_acceptance_length"] == pytest.approx(1 + (4 + 1) / 2)
    assert row_of(long)["mean_acceptance_length"] == pytest.approx(1 + (16 + 1) / 5)
    difference = paired_difference(estimates_of(short), estimates_of(long), "full_draft_length")
    assert difference == (0, 0, 0)


def shortened_cell(num_full):
    """Two prompts with so many drafts that count in full, and a last one with 1 of 4 tokens as evidence."""
    rounds = [round_record(0, 0, 0.1), *(round_record(4, 4, 0.2 + step) for step in range(num_full))]
    rounds.append(round_record(1, 1, 9.0, num_proposed=4, cut=CutReason.length))
    return cell_record([request_record(rounds, prompt_id) for prompt_id in "ab"])


def test_a_short_proposal_that_counts_whole_is_a_full_draft():
    """Would catch K of the configuration taken for what was proposed: an n-gram drafter often finds fewer tokens."""
    rounds = [round_record(0, 0, 0.1), round_record(2, 1, 0.2), round_record(3, 0, 0.3), round_record(0, 0, 0.4)]
    row = row_of(cell_record([request_record(rounds)], settings=config(drafting__num_speculative_tokens=3)))
    assert row["num_full_drafts"] == row["num_drafts"] == 2 and row["full_draft_length"] == 1 + 1 / 2


def test_full_and_expected_lengths_are_over_the_same_drafts():
    """Would catch an expectation on a shortened draft taken in: it is for the whole draft, the evidence is not."""
    rounds = [round_record(0, 0, 0.1), round_record(2, 1, 0.2, expected=(0.5, 0.75, 1.0))]
    rounds.append(round_record(1, 1, 0.3, num_proposed=2, cut=CutReason.eos, expected=(1.5, 1.5, 1.5)))
    row = row_of(cell_record([request_record(rounds)]))
    assert row["num_full_drafts"] == row["num_expected_drafts"] == 1
    assert row["expected_length_block"] == row["full_draft_length"] == 2


def test_no_expected_length_where_it_is_missing_for_some_full_drafts():
    """Would catch the mean over rounds before a grammar began, set beside the length over all rounds."""
    rounds = [round_record(0, 0, 0.1), round_record(2, 1, 0.2, expected=(0.5, 0.75, 1.0)), round_record(2, 0, 0.3)]
    row = row_of(cell_record([request_record(rounds)]))
    assert row["num_full_drafts"] == 2 and row["num_expected_drafts"] == 0
    assert np.isnan(row["expected_length_block"])


def test_expected_length_counts_only_drafts_for_which_it_was_recorded():
    """Would catch the mean taken over all drafts, and the expectation of a cut round mixed in."""
    rounds = [
        round_record(0, 0, 0.1),
        round_record(2, 1, 0.2, expected=(0.5, 0.75, 1.0)),
        round_record(2, 2, 0.3, expected=(0.7, 0.85, 1.5)),
        round_record(1, 0, 0.4, num_proposed=2),
    ]
    row = row_of(cell_record([request_record(rounds)]))
    assert row["num_drafts"] == 3 and row["num_expected_drafts"] == 2
    found = [row[f"expected_length_{method}"] for method in ("strict", "probabilistic", "block")]
    assert found == pytest.approx([1.6, 1.8, 2.25])


def test_a_round_that_emits_nothing_is_no_arrival():
    """Would catch a zero-token round that shortens the inter-token latency or ends the time to the first token."""
    empty = RoundRecord(2, 0, 0, 0, CutReason.grammar, 0.5, 0.1)
    row = row_of(
        cell_record([request_record([empty, round_record(0, 0, 1.0), empty_at(1.5), round_record(1, 1, 3.0)])])
    )
    assert row["ttft_mean_ms"] == pytest.approx(1000) and row["itl_mean_ms"] == pytest.approx(2000)


def empty_at(arrival_s):
    return RoundRecord(2, 0, 0, 0, CutReason.grammar, arrival_s, 0.1)


def test_undefined_metrics_are_nan():
    """Would catch 0 / 0 printed as 0: a cell without drafts has no acceptance rate, and one token has no TPOT."""
    row = row_of(cell_record([request_record([round_record(0, 0, 1.0)])], settings=baseline_settings()))
    for name in (
        "acceptance_rate",
        "mean_acceptance_length",
        "full_draft_length",
        "mean_acceptance_length_macro",
        "tpot_mean_ms",
        "itl_p99_ms",
    ):
        assert np.isnan(row[name])
    assert row["tokens_per_forward"] == 1


def test_a_cell_without_requests_is_a_row_of_undefined_values():
    row = row_of(cell_record([], wall_s=0.0))
    assert row["num_requests"] == 0 and np.isnan(row["acceptance_rate"]) and np.isnan(row["ttft_p50_ms"])


def test_shares_of_time_are_scaled_to_the_wall_time():
    """Would catch a throughput of tokens over the sum of the shares, which misses the time between steps."""
    record = replace(worked_example(), wall_s=8.0)
    sums = cell_sums(record)
    assert sums.sums["time_s"].sum() == pytest.approx(8.0, rel=1e-12)
    assert list(sums.sums["time_s"] / 8.0) == pytest.approx([4 / 7, 3 / 7])
    assert row_of(record)["output_tokens_per_s"] == pytest.approx(14 / 8, rel=1e-12)


def test_random_weights_are_labelled_whatever_the_record_says():
    """Would catch numbers of a random model without a word, and a record older than the setting that is refused."""
    row = row_of(cell_record([], 0.0, config(drafter__weights="random"), labels=()))
    assert (row["labels"], row["target_weights"], row["drafter_weights"]) == (
        "drafter weights: random",
        "checkpoint",
        "random",
    )
    settings = config()
    for section, name in (("target", "weights"), ("drafter", "weights"), ("workload", "prompt_tokens")):
        del settings[section][name]
    row = row_of(cell_record([], 0.0, settings))
    assert (row["labels"], row["target_weights"], row["prompt_tokens"]) == ("", "checkpoint", 0)


def test_a_profile_stands_for_its_rates_in_a_row():
    profile = {"method": "synthetic", "profile": "round_eagle_k3", "rates": [0.6, 0.37, 0.23]}
    settings = config(guarantee="synthetic", verification=profile | {"length": None})
    assert row_of(cell_record([], 0.0, settings))["verification"] == "synthetic(profile=round_eagle_k3)"


def test_labels_and_parameters_are_part_of_a_row():
    """Would catch a lossy method without its label, and two cells of a method that differ in a parameter."""
    settings = config(verification__method="typical", verification__epsilon=0.2, guarantee="lossy")
    row = row_of(cell_record([], 0.0, settings, labels=("weights: random",)))
    assert row["verification"] == "typical(epsilon=0.2, delta=0.3)"
    assert row["labels"] == "weights: random; lossy"
    settings = config(verification__method="synthetic", verification__length=2.5, guarantee="synthetic")
    row = row_of(cell_record([], 0.0, settings, labels=("synthetic",)))
    assert (row["verification"], row["labels"]) == ("synthetic(length=2.5)", "synthetic")


def test_a_configuration_without_a_setting_is_an_error_that_names_it():
    settings = config()
    del settings["decoding"]["temperature"]
    with pytest.raises(ValueError, match=r"lacks decoding\.temperature"):
        analysed(cell_record([], 0.0, settings))


def test_itl_per_token_and_goodput_are_what_they_say():
    """Would catch a gap counted once for several tokens, a limit that nothing keeps, and goodput without limits."""
    first = request_record([round_record(0, 0, 1.0), round_record(2, 1, 2.0), round_record(2, 2, 6.0)], "a")
    second = request_record([round_record(0, 0, 2.0), round_record(2, 0, 3.0)], "b")
    settings = config(measurement__max_ttft_ms=1500.0, measurement__max_e2e_ms=6000.0)
    row = row_of(cell_record([first, second], 8.0, settings))
    gaps = [0.5, 0.5, 4 / 3, 4 / 3, 4 / 3, 1.0]
    assert row["itl_per_token_mean_ms"] == pytest.approx(1e3 * sum(gaps) / 6)
    assert row["itl_per_token_p50_ms"] == pytest.approx(1e3 * sum(sorted(gaps)[2:4]) / 2)
    assert row["itl_mean_ms"] == pytest.approx(1e3 * (1 + 4 + 1) / 3)
    assert row["goodput_requests_per_s"] == pytest.approx(1 / 8)
    assert np.isnan(row_of(cell_record([first, second], 8.0))["goodput_requests_per_s"])
