"""Differences between two runs: which cells match, what is paired, and how the rest is reported."""

import shutil
from dataclasses import replace

import pytest

from experiments import report as command
from harness.report.run_comparison import compare_runs, read_two_runs
from tests.support.synthetic_cells import analysed, baseline_settings, config, simulated_cell, simulated_run


def run_of(*methods, num_prompts=4, **changes):
    """A baseline and a cell for every method."""
    records = [simulated_cell(baseline_settings(**changes), [], num_prompts=num_prompts)]
    for seed, method in enumerate(methods):
        settings = config(verification__method=method, **changes)
        records.append(simulated_cell(settings, [0.6, 0.5, 0.4], num_prompts=num_prompts, seed=seed))
    return analysed(*records)


def compared(first, second):
    """Title -> table of the comparison of two runs, and its warnings."""
    comparison = compare_runs("old", first, "new", second)
    return {table.title: table for table in comparison.tables}, comparison.warnings


PAIRED = "Paired differences, new − old"


def column(table, name):
    return [row[table.header.index(name)] for row in table.texts]


def test_a_run_played_again_differs_in_nothing():
    cells = run_of("strict", "block")
    tables, warnings = compared(cells, cells)
    assert list(tables) == [PAIRED] and warnings == ()
    assert column(tables[PAIRED], "same answers") == ["4 of 4"] * 3
    assert column(tables[PAIRED], "verification") == ["baseline", "strict", "block"]
    assert column(tables[PAIRED], "acceptance length of full drafts, difference") == ["–", "0", "0"]
    assert column(tables[PAIRED], "output throughput (tok/s), ratio")[1].startswith("1.00 [")


def test_a_setting_that_a_whole_run_has_otherwise_is_listed_and_its_cells_are_paired():
    """Would catch runs before and after a change of one setting that have no cell in common."""
    tables, _ = compared(run_of("strict", "block"), run_of("strict", "block", num_prompts=3, dtype="bfloat16"))
    assert tables["Settings that differ"].rows == (("dtype", "float32", "bfloat16"),)
    assert column(tables[PAIRED], "prompts in common") == ["3"] * 3
    assert column(tables[PAIRED], "verification") == ["baseline", "strict", "block"]


def test_a_setting_that_is_not_set_and_one_that_is_not_used_do_not_differ():
    """Would catch a row of two dashes: an old record lacks a setting that is null in a new one."""
    old, new = run_of("strict"), run_of("strict")
    for cell in old:
        del cell.record.config["workload"]["request_rate"]
    assert "Settings that differ" not in compared(old, new)[0]


def test_a_setting_that_one_run_sweeps_matches_value_by_value():
    """Would catch a block cell paired with a strict one because the other run has a single method."""
    tables, _ = compared(run_of("strict", "block"), run_of("block"))
    assert column(tables[PAIRED], "verification") == ["baseline", "block"]
    (row,) = tables["Cells without a partner"].rows
    assert row[:2] == ("old", "eagle3, K = 3, T = 1, strict, sampled drafts")
    assert row[2] == "verification.method is strict, there block"


def test_the_difference_is_the_second_less_the_first():
    first, second = (
        analysed(simulated_cell(config(), rates, num_prompts=6)) for rates in ([0.4, 0.3, 0.2], [0.8, 0.7, 0.6])
    )
    tables, _ = compared(first, second)
    (text,) = column(tables[PAIRED], "acceptance rate (%), difference")
    assert text.startswith("+") and "[+" in text


def test_other_prompts_are_not_paired():
    """Would catch prompts of two data sets paired because their ids are numbers in both."""
    tables, warnings = compared(run_of("strict"), run_of("strict", workload__path="questions.jsonl"))
    assert PAIRED not in tables and len(tables["Cells without a partner"].rows) == 4
    assert column(tables["Cells without a partner"], "why") == ["other prompts"] * 4
    (warning,) = warnings
    assert warning.startswith("The runs are on different prompts (old: builtin; new: questions.jsonl), so no cells are")
    assert "Run one of the two again with the workload of the other" in warning


def swept(depths, *, baselines=1, **changes):
    """A run of strict verification at some depths."""
    records = [simulated_cell(baseline_settings(**changes), [], num_prompts=3)] * baselines
    for depth in depths:
        settings = config(verification__method="strict", drafting__num_speculative_tokens=depth, **changes)
        records.append(simulated_cell(settings, [0.5] * depth, num_prompts=3))
    return analysed(*records)


def test_runs_without_a_common_cell_say_which_setting_keeps_them_apart():
    """Would catch an empty comparison without a word."""
    tables, (warning,) = compared(swept((1, 2), baselines=0), swept((3, 4), baselines=0))
    assert PAIRED not in tables
    assert warning.startswith("No cells are paired: drafting.num_speculative_tokens is 1, 2 in old and 3, 4 in new. ")
    assert "Run one of the two again with values that the other has" in warning
    assert column(tables["Cells without a partner"], "why")[0] == "drafting.num_speculative_tokens is 1, there 3, 4"


def test_runs_with_nothing_but_baselines_in_common_say_so():
    _, (warning,) = compared(swept((1, 2)), swept((3, 4)))
    assert warning.startswith("Only baselines are paired: drafting.num_speculative_tokens is 1, 2 in old and 3, 4")
    _, (warning,) = compared(swept((1, 2)), swept(()))
    assert warning.startswith("Only baselines are paired: new has no cells with a drafter. ")
    _, (warning,) = compared(swept((), baselines=1), swept((3,), baselines=0))
    assert warning.startswith("No cells are paired: old has no cells with a drafter. ")


def test_values_that_both_runs_have_but_never_together_are_named():
    def crossed(*pairs):
        cells = [
            simulated_cell(
                config(drafting__num_speculative_tokens=depth, decoding__temperature=temperature), [0.5], num_prompts=3
            )
            for depth, temperature in pairs
        ]
        return analysed(*cells)

    tables, (warning,) = compared(crossed((1, 0.5), (2, 1.0)), crossed((1, 1.0), (2, 0.5)))
    names = "decoding.temperature, drafting.num_speculative_tokens"
    assert f"No cells are paired: no combination of {names} is in both runs. " in warning
    whys = column(tables["Cells without a partner"], "why")
    assert whys == [f"no cell there with this combination of {names}"] * 4


def test_pairs_without_a_common_prompt_say_what_chose_other_prompts():
    """Would catch columns of dashes for two seeds that took different prompts, without a word."""
    first, second = run_of("strict"), run_of("strict", seed=1, workload__num_prompts=4)
    records = [
        replace(
            cell.record,
            requests=tuple(replace(item, prompt_id=f"other {item.prompt_id}") for item in cell.record.requests),
        )
        for cell in second
    ]
    tables, (warning,) = compared(first, analysed(*records))
    assert column(tables[PAIRED], "prompts in common") == ["0", "0"]
    assert column(tables[PAIRED], "acceptance rate (%), difference") == ["–", "–"]
    assert warning.startswith(
        "2 of 2 pairs have no prompt in common (seed is 0 in old and 1 in new; workload.num_prompts"
    )
    assert any("a difference needs prompts in common" in note for note in tables[PAIRED].notes)


def test_runs_of_two_seeds_on_the_same_prompts_are_paired_and_the_seed_is_listed():
    """Would catch seeds that keep runs apart although every prompt is in both."""
    tables, warnings = compared(run_of("strict"), run_of("strict", seed=1))
    assert tables["Settings that differ"].rows == (("seed", "0", "1"),) and warnings == ()
    assert column(tables[PAIRED], "prompts in common") == ["4", "4"]


def test_the_command_says_on_the_terminal_and_on_the_page_why_nothing_is_paired(tmp_path, capsys):
    for name, depth in (("a", 2), ("b", 3)):
        simulated_run(
            tmp_path / name, temperatures=(1.0,), methods=("strict",), depths=(depth, depth + 2), num_prompts=2
        )
    assert command.main([str(tmp_path / "a"), str(tmp_path / "b"), "--html"]) == 0
    why = (
        "Only baselines are paired: drafting.num_speculative_tokens is 2, 4 in a and 3, 5 in b. Cells are paired where"
    )
    assert f"note: {why}" in capsys.readouterr().err
    assert why in (tmp_path / "b" / "comparison.html").read_text()


def test_the_command_names_the_settings_that_differ(tmp_path, capsys):
    """Would catch a summary of differences without what they come from, and other settings than those on the page."""
    for name, depths in (("a", (2, 4)), ("b", (2, 4)), ("c", (3, 4))):
        simulated_run(tmp_path / name, temperatures=(1.0,), methods=("strict",), depths=depths, num_prompts=2)
    shown = []
    for name in "bc":
        assert command.main([str(tmp_path / "a"), str(tmp_path / name), "--html"]) == 0
        shown.append(capsys.readouterr().out.splitlines()[1:])
    _, comparison = read_two_runs(tmp_path / "a", tmp_path / "c")
    assert comparison.tables[0].rows == (("drafting.num_speculative_tokens", "2, 4", "3, 4"),)
    assert shown == [
        ["no setting differs"],
        ["settings that differ, a → c:", "  drafting.num_speculative_tokens: 2, 4 → 3, 4"],
    ]


def test_runs_of_the_same_name_are_told_apart(tmp_path):
    first = simulated_run(tmp_path / "a" / "run", temperatures=(1.0,), methods=("strict",), num_prompts=2)
    second = shutil.copytree(first, tmp_path / "b" / "run")
    results, comparison = read_two_runs(first, second)
    assert comparison.title == "Differences: run (second) − run (first)"
    assert [cell["run"] for cell in results.cells] == ["run (first)"] * 2 + ["run (second)"] * 2


def test_a_folder_of_runs_is_not_one_run(tmp_path):
    for name in "ab":
        simulated_run(tmp_path / name, temperatures=(1.0,), methods=("strict",), num_prompts=2)
    with pytest.raises(ValueError, match="expected one run to compare, found 2"):
        read_two_runs(tmp_path / "a", tmp_path)


@pytest.mark.parametrize(
    "arguments", [["a", "b"], ["a", "b", "--html", "--pdf"], ["a", "--html", "--format", "csv"]], ids=" ".join
)
def test_arguments_that_do_not_go_together_are_refused(arguments, capsys):
    assert command.main(arguments) == 2 and "expected --html" in capsys.readouterr().err


def test_the_summary_counts_the_pairs_and_names_the_largest_difference():
    """Would catch the smallest difference, or that of another cell, called the largest."""
    first = run_of("strict", "block")
    same = compare_runs("old", first, "new", first).summary
    assert same.startswith("3 cells paired; acceptance length of full drafts, largest difference: 0 (")
    settings = [config(verification__method=method) for method in ("strict", "block")]
    sides = [
        analysed(*(simulated_cell(item, rate, num_prompts=6) for item, rate in zip(settings, rates, strict=True)))
        for rates in (([0.5] * 3, [0.4] * 3), ([0.5] * 3, [0.9] * 3))
    ]
    found = compare_runs("old", sides[0], "new", sides[1]).summary
    assert found.startswith("2 cells paired; ")
    length = found.split("; ")[1]
    assert "largest difference: +" in length and ", block, " in length
    assert compare_runs("old", first, "new", run_of("strict", workload__path="q.jsonl")).summary == "0 cells paired"
