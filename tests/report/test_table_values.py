"""Values in tables: numbers and intervals as text, marks, order and what stands above a table."""

from dataclasses import replace

import pytest

from harness.analysis.estimates import Estimate
from harness.report.cell_names import DISTURBED
from harness.report.entries import estimate_number, metric_number
from harness.report.number_format import Number, count, format_estimate, format_value, without_width_zero
from harness.report.table import NONE, Table
from harness.report.tables.methods import method_tables, paired_table
from harness.report.tables.summary import summary_table
from tests.support.synthetic_cells import (
    analysed,
    cell_record,
    config,
    drafted,
    request_record,
    round_record,
    simulated_cell,
)
from tests.support.table_columns import column, column_of

pytestmark = pytest.mark.fast

NAN = float("nan")


@pytest.mark.parametrize(
    ("estimate", "style", "text"),
    [
        ((2.2134, 2.1311, 2.2899), "length", "2.21 [2.13, 2.29]"),
        ((0.2804, 0.25, 0.3), "percent", "28.0 [25.0, 30.0]"),
        ((2824.11, 2790.4, 2860.9), "significant", "2824 [2790, 2861]"),
        ((99.96, 98.2, 101.4), "significant", "100 [98, 101]"),
        ((9.6, 9.2, 9.9), "significant", "9.60 [9.20, 9.90]"),
        ((12345.6, 12000.0, 12700.0), "significant", "12,346 [12,000, 12,700]"),
        ((0.5, NAN, NAN), "length", "0.50 [n/a]"),
        ((NAN, NAN, NAN), "length", "n/a"),
        ((1.0, 1.0, 1.0), "percent", "100.0 [100.0, 100.0]"),
    ],
)
def test_a_value_and_its_interval_have_the_same_decimals(estimate, style, text):
    assert format_estimate(Estimate(*estimate), style) == text


@pytest.mark.parametrize(
    ("estimate", "style", "text"),
    [
        ((0.05, 0.01, 0.09), "length", "+0.05 [+0.01, +0.09]"),
        ((-0.001, -0.02, 0.02), "length", "0.00 [-0.02, +0.02]"),
        ((0.0, 0.0, 0.0), "percent", "0"),
    ],
)
def test_differences_carry_their_sign_and_zero_has_none(estimate, style, text):
    """Would catch -0.00, which reads as a loss."""
    assert format_estimate(Estimate(*estimate), style, signed=True) == text


@pytest.mark.parametrize(
    ("estimate", "kept"),
    [
        pytest.param((501.0, 501.0, 501.0), False, id="one time"),
        pytest.param((501.0, 501.0 - 1e-11, 501.0 + 1e-11), False, id="one time, other order of additions"),
        pytest.param((501.0, 500.9, 501.1), True, id="narrow"),
        pytest.param((0.0, 0.0, 0.0), True, id="a difference with itself"),
        pytest.param((-2.0, -2.0, -2.0), False, id="one difference"),
    ],
)
def test_an_interval_without_width(estimate, kept):
    found = without_width_zero(Estimate(*estimate))
    assert found.value == estimate[0] and (found == estimate) is kept


def in_one_batch(num_accepted, step_s):
    """Three prompts whose requests share every step, so their times are the same; acceptance may be, too."""
    settings = config(verification__method="strict" if num_accepted < 2 else "block")
    rounds = [round_record(0, 0, step_s, share_s=step_s / 3)]
    rounds += [round_record(2, num_accepted, (2 + step) * step_s, share_s=step_s / 3) for step in range(4)]
    requests = [request_record(rounds, prompt_id) for prompt_id in "abc"]
    return cell_record(requests, 5 * step_s, settings)


def test_a_time_that_all_prompts_share_has_no_interval():
    """Would catch [501, 501] beside a time, which reads as certainty and says that prompts shared a batch.

    Tokens are not times: if every prompt accepts alike, that was observed for each of them.
    """
    first, second = analysed(in_one_batch(1, 0.1), in_one_batch(2, 0.07))
    assert first.estimate("ttft_p50_ms").low == first.estimate("ttft_p50_ms").high == pytest.approx(100)
    assert str(estimate_number(first, "ttft_p50_ms")) == "100 [n/a]"
    assert str(estimate_number(first, "output_tokens_per_s")) == "54.0 [n/a]"
    assert str(estimate_number(first, "acceptance_rate")) == "50.0 [50.0, 50.0]"
    (table,) = method_tables([first, second])
    difference = column(table, table.header[-1])
    assert difference["mean TTFT (ms)"] == "-30.0 [n/a]" and difference["duration (s)"] == "-0.15 [n/a]"
    assert difference["acceptance rate (%)"] == "+50.0 [+50.0, +50.0]"
    assert column_of(paired_table([first, second]), "output throughput (ratio)") == ["2.06 [n/a]"]
    summary = summary_table([first, second])
    assert column_of(summary, "p50 TTFT (ms)") == ["100 [n/a]", "70.0 [n/a]"]
    assert any("n/a is printed" in note for note in summary.notes)
    assert str(metric_number(Estimate(1.0, 0.9, 1.1), "ttft_p50_ms")) == "1.00 [0.90, 1.10]"


def test_rows_of_a_sweep_are_in_the_order_of_its_numbers():
    """Would catch 128 requests in flight before 16, as text is sorted."""
    numbers = (128, 2, 16)
    sweep = [simulated_cell(config(backend__max_concurrency=number), [0.6, 0.5], num_prompts=3) for number in numbers]
    assert column_of(summary_table(analysed(*sweep)), "max_concurrency") == ["2", "16", "128"]


def test_counts_are_grouped_from_ten_thousand_on():
    assert [format_value(value, "count") for value in (0, 9999, 246348)] == ["0", "9999", "246,348"]


def test_markdown_and_csv_of_a_small_table():
    table = Table("Title", ("a", "b|c"), (("1", "x, y"),), ("note",))
    assert table.to_markdown() == "### Title\n\n| a | b\\|c |\n| --- | --- |\n| 1 | x, y |\n\n- note\n"
    assert table.to_csv() == 'a,b|c\n1,"x, y"\n'


def test_what_never_changes_stands_above_a_table_once_and_in_every_row_of_its_csv():
    """Would catch a setting that is dropped without being said, and a column of dashes and one value that stays."""
    rows = (("a", count(4), NONE, count(1), ""), ("b", NONE, NONE, count(2), ""))
    table = Table("Title", ("name", "K", "empty", "n", "labels"), rows)
    assert table.compact.header == ("name", "n") and table.compact.above == "K: 4"
    assert "K: 4\n\n| name | n |" in table.to_markdown() and table.to_csv().startswith(
        "name,K,empty,n,labels\na,4,–,1,"
    )
    assert replace(table, rows=rows[:1]).compact.header == table.header


def test_what_was_measured_of_some_rows_stays_in_them():
    """Would catch an acceptance length above a table whose baseline has none."""
    length = Number(2.2, 2.1, 2.3)
    table = Table("Title", ("name", "length", "same"), (("baseline", NONE, length), ("eagle", length, length)))
    assert table.compact.header == ("name", "length") and table.compact.above.startswith("same: 2.2")


def test_times_of_a_disturbed_cell_are_marked_where_they_stand():
    """Would catch a warning above the tables whose numbers look like the others."""
    slow, steady = (drafted("strict", seed=seed, num_prompts=4) for seed in (1, 2))
    cells = analysed(slow, steady)
    vars(cells[0])["drift"] = 0.3
    assert str(estimate_number(cells[0], "output_tokens_per_s")).endswith(f"]{DISTURBED}")
    assert DISTURBED not in str(estimate_number(cells[0], "acceptance_rate"))
    assert DISTURBED not in str(estimate_number(cells[1], "output_tokens_per_s"))
