"""Tables of methods: side by side, paired differences, and what is printed where methods coincide."""

import csv
import io
import re
from dataclasses import replace

import pytest
from msgspec import structs

from harness.analysis.cell import analyse
from harness.analysis.comparison import comparisons_frame, groups, same_law
from harness.analysis.definitions import INTERVALS
from harness.records.runs import read_runs
from harness.report.bound_notes import DRAFTED_ENDS
from harness.report.tables.methods import PR_NAMES, method_tables, paired_table
from harness.report.tables.summary import summary_table
from kernels.methods.acceptance_profiles import AcceptanceProfile
from tests.support.synthetic_cells import analysed, baseline_settings, config, drafted, simulated_cell, simulated_run
from tests.support.table_columns import column, column_of

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("first", "second", "alike"),
    [
        pytest.param(("strict",), ("probabilistic",), False, id="sampled drafts"),
        pytest.param(("strict", "greedy"), ("block", "greedy"), True, id="one-hot drafts"),
        pytest.param(("strict", "greedy"), ("typical", "greedy"), False, id="a lossy method with one-hot drafts"),
        pytest.param(("strict", "greedy"), ("strict", "sampled"), False, id="other drafts"),
        pytest.param(("strict", "coupled"), ("strict", "sampled"), True, id="drafts whose noise the method ignores"),
        pytest.param(("pr35461", "coupled"), ("strict", "coupled"), False, id="a method that shares the noise"),
    ],
)
def test_which_methods_follow_the_same_law(first, second, alike):
    left, right = analysed(drafted(*first), drafted(*second))
    assert same_law(left, right) is alike


def test_same_law_at_temperature_zero_and_with_one_draft_token():
    """Would catch noise between methods that cannot differ, and synthetic acceptance taken for a real method."""
    cold = [drafted(method, temperature=0.0) for method in ("strict", "block", "typical", "synthetic")]
    strict, block, typical, synthetic = analysed(*cold)
    assert same_law(strict, block) and same_law(strict, typical) and not same_law(strict, synthetic)
    probabilistic, block = analysed(drafted("probabilistic", depth=1), drafted("block", depth=1))
    assert same_law(probabilistic, block)
    lenient = drafted("lenient", verification__leniency=1.0)
    probabilistic, full, half = analysed(
        drafted("probabilistic"), lenient, drafted("lenient", verification__leniency=0.5)
    )
    assert same_law(probabilistic, full) and not same_law(probabilistic, half)


def test_methods_side_by_side_in_the_manner_of_the_pull_request():
    """The rows of the table in vLLM PR 35461, the baseline beside the methods, differences against the first."""
    baseline = simulated_cell(baseline_settings(), [], num_rounds=40, num_prompts=10)
    cells = analysed(drafted("probabilistic", seed=2, rates=(0.8, 0.7, 0.6)), baseline, drafted("strict"))
    (table,) = method_tables(cells)
    assert table.title == "zoo · eagle3 · K = 3 · T = 1"
    assert table.header == (
        "metric",
        "baseline",
        "strict, sampled drafts",
        "probabilistic, sampled drafts",
        "probabilistic, sampled drafts − strict",
    )
    labels = [row[0] for row in table.texts]
    rows = ["duration (s)", "request throughput (req/s)", "output throughput (tok/s)", "total throughput (tok/s)"]
    rows += [f"{statistic} {name} (ms)" for name in ("TTFT", "TPOT", "ITL") for statistic in ("mean", "p50", "p99")]
    rows += ["acceptance rate (%)", "mean acceptance length", "acceptance length of full drafts"]
    rows += ["drafts", "draft tokens", "accepted tokens"]
    rows += [f"acceptance at position {position} (%)" for position in (1, 2, 3)]
    assert [label for label in labels if label in rows] == rows
    assert column(table, "baseline")["acceptance rate (%)"] == "–"
    strict, probabilistic = (
        column(table, f"{name}, sampled drafts")["acceptance rate (%)"] for name in ("strict", "probabilistic")
    )
    difference = column(table, table.header[-1])["acceptance rate (%)"]
    matched = re.fullmatch(r"\+(\d+\.\d) \[\+(\d+\.\d), \+(\d+\.\d)\]", difference)
    assert float(matched[1]) == pytest.approx(float(probabilistic) - float(strict), abs=0.11)
    assert float(matched[2]) < float(matched[1]) < float(matched[3])
    assert column(table, table.header[-1])["draft tokens"] == "0"


def test_every_method_stands_beside_its_difference_to_the_chosen_reference():
    """Would catch differences to the first method where the run names another, or beside another method."""
    cells = analysed(
        drafted("strict", rates=(0.3, 0.3, 0.3)), drafted("coupled", "coupled"), drafted("block", rates=(0.9, 0.9, 0.9))
    )
    (table,) = method_tables(cells, {"run": "coupled"})
    assert table.header == (
        "metric",
        "coupled, coupled drafts",
        "strict, sampled drafts",
        "strict, sampled drafts − coupled",
        "block, sampled drafts",
        "block, sampled drafts − coupled",
    )
    row = next(row for row in table.texts if row[0] == "acceptance rate (%)")
    assert row[3].startswith("-") and row[5].startswith("+")
    (absent,) = method_tables(cells, {"run": "pr35461", "other": "coupled"})
    assert absent.header[1] == "strict, sampled drafts"


def test_synthetic_profiles_stand_in_the_order_of_what_they_accept():
    """Would catch strict - probabilistic where the pull request has probabilistic - strict."""
    records = []
    for profile in ("derived_glm47_mtp_probabilistic_k3", "derived_glm47_mtp_strict_k3"):
        rates = list(AcceptanceProfile(profile).rates)
        settings = {"verification__method": "synthetic", "verification__profile": profile}
        settings |= {"verification__rates": rates, "guarantee": "synthetic"}
        records.append(simulated_cell(config(**settings), rates, num_prompts=3))
    (table,) = method_tables(analysed(*records))
    assert "strict_k3" in table.header[1] and "probabilistic_k3" in table.header[2]


def test_what_no_cell_measured_of_its_drafts_is_left_out():
    """Would catch four columns and rows of n/a in every run that measures speed."""
    known = simulated_cell(config(), [0.6, 0.5, 0.4], num_prompts=3)
    requests = [
        replace(
            item,
            rounds=tuple(structs.replace(each, expected_accepted=None, position_bounds=None) for each in item.rounds),
        )
        for item in known.requests
    ]
    for record, is_there in ((known, True), (replace(known, requests=tuple(requests)), False)):
        cells = analysed(record)
        (methods,) = method_tables(cells)
        for name in ("expected length", "share of the bound"):
            assert any(name in label for label in summary_table(cells).header) is is_there
            assert any(name in row[0] for row in methods.rows) is is_there


def test_drafted_ends_of_sequence_are_named_beside_the_share_of_the_bound():
    """Would catch the note where no share is shown, or no answer ends in a token."""
    sampled = drafted("probabilistic")
    (open_ended,) = analysed(sampled)
    unmeasured = [
        replace(item, rounds=tuple(structs.replace(each, position_bounds=None) for each in item.rounds))
        for item in sampled.requests
    ]
    ends = replace(sampled, config=config(decoding__ignore_eos=True)), replace(sampled, requests=tuple(unmeasured))
    for cells, is_there in (([open_ended], True), *(([cell], False) for cell in analysed(*ends))):
        for table in (summary_table(cells), *method_tables(cells)):
            assert (DRAFTED_ENDS in table.notes) is is_there
    assert DRAFTED_ENDS not in paired_table([open_ended]).notes


def test_definitions_stand_below_every_table():
    """Would catch a table whose numbers a reader cannot define."""
    cells = analysed(simulated_cell(baseline_settings(), [], num_prompts=10), drafted("strict"), drafted("block"))
    for table in (summary_table(cells), *method_tables(cells), paired_table(cells)):
        text = table.to_markdown()
        assert "acceptance rate (%): accepted draft tokens / draft tokens" in text
        assert "rounds with K_r = 0" in text and INTERVALS in text
    (methods,) = method_tables(cells)
    assert "acceptance at position i (%): unconditional" in methods.to_markdown() and PR_NAMES in methods.notes


def test_methods_of_the_same_law_show_zero_and_not_their_noise():
    """One-hot drafts at T = 1: the two cells differ by chance only. Times may differ and are shown."""
    cells = analysed(drafted("strict", "greedy", seed=1), drafted("block", "greedy", seed=2))
    (table,) = method_tables(cells)
    difference = column(table, table.header[-1])
    assert difference["acceptance rate (%)"] == difference["accepted tokens"] == "0 (same law)"
    assert "same law" not in difference["output throughput (tok/s)"] and difference["output throughput (tok/s)"] != "0"
    assert any(note.startswith("same law") for note in table.notes)
    frame = comparisons_frame(cells).set_index(["metric", "kind"])
    assert frame.loc[("acceptance_rate", "difference"), "same_law"]
    assert frame.loc[("acceptance_rate", "difference"), "value"] != 0
    assert not frame.loc[("output_tokens_per_s", "ratio"), "same_law"]


def test_a_difference_at_temperature_zero_is_not_hidden():
    """Would catch a table that prints 0 where greedy decoding came out different, which would be a defect."""
    cells = analysed(drafted("strict", temperature=0.0, seed=1), drafted("block", temperature=0.0, seed=1))
    (table,) = method_tables(cells)
    assert column(table, table.header[-1])["acceptance rate (%)"] == "0 (same law)"
    cells = analysed(drafted("strict", temperature=0.0, seed=1), drafted("block", temperature=0.0, seed=2))
    (table,) = method_tables(cells)
    shown = column(table, table.header[-1])["acceptance rate (%)"]
    assert shown.endswith("(same law)") and shown != "0 (same law)"


def test_requests_with_a_temperature_of_their_own_do_not_follow_the_law_of_the_argmax():
    """Would catch a noise of sampling that is called a defect, and a claim of a law that does not hold."""

    def own(method, temperature):
        cell = drafted(method, temperature=0.0, seed=1)
        sampling = {"temperature": temperature, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
        first, *others = cell.requests
        return replace(cell, requests=(replace(first, sampling=sampling), *others))

    for temperature, alike in ((0.0, True), (1.0, False)):
        cells = analysed(own("strict", temperature), own("probabilistic", temperature))
        (table,) = method_tables(cells)
        assert same_law(*cells) is alike
        assert any(note.startswith("own sampling") for note in table.notes)


def test_labels_stand_in_the_headers_and_rows():
    """Would catch a lossy or biased method beside lossless ones without a word."""
    biased = drafted("pr35461", "coupled", guarantee="biased")
    cells = analysed(drafted("strict"), biased)
    (table,) = method_tables(cells)
    assert "pr35461, coupled drafts [biased]" in table.header
    assert any(note.startswith("draft sampling differs") for note in table.notes)
    assert [row[-1] for row in summary_table(cells).rows] == ["", "biased"]
    assert [row[-1] for row in paired_table(cells).rows] == ["biased"]


def test_paired_table_compares_every_two_methods_of_a_setting_only():
    cells = analysed(
        drafted("block", seed=3),
        drafted("strict", seed=1),
        drafted("probabilistic", seed=2),
        drafted("strict", temperature=0.5),
    )
    table = paired_table(cells)
    assert list(column_of(table, "comparison")) == ["probabilistic − strict", "block − strict", "block − probabilistic"]
    assert len(groups(cells)) == 2
    # the expected lengths of the simulated drafts are ordered, and the noise of accepting is not in them
    for text in column_of(table, "expected length, same drafts"):
        assert re.fullmatch(r"\+0\.\d\d \[\+0\.\d\d, \+0\.\d\d\]", text)


def test_summary_names_what_varies_and_sorts_baselines_first(tmp_path):
    folder = simulated_run(tmp_path / "run", drafters=("eagle", "eagle3"), methods=("strict", "block"), num_prompts=4)
    table = summary_table(analyse(read_runs(folder)))
    assert table.header[:5] == ("T", "drafter", "K", "verification", "drafts")
    rows = [row[:4] for row in table.texts]
    half = [
        ("none", "–", "–"),
        *((name, "3", method) for name in ("eagle", "eagle3") for method in ("strict", "block")),
    ]
    assert rows == [(temperature, *row) for temperature in "01" for row in half]
    parsed = list(csv.reader(io.StringIO(table.to_csv())))
    assert len(parsed) == 11 and all(len(row) == len(table.header) for row in parsed)


def test_settings_that_vary_between_groups_are_in_the_titles():
    """Would catch two tables with the same title and different numbers."""
    cells = analysed(drafted("strict"), drafted("strict", backend__max_concurrency=1))
    titles = [table.title for table in method_tables(cells)]
    assert titles == [f"zoo · eagle3 · K = 3 · T = 1 · {number} in flight" for number in (16, 1)]
