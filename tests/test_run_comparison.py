"""Differences between two runs: which cells match, what is paired, and what is said about the rest."""

import shutil

import pytest

from experiments import report as command
from harness.run_comparison import compare_runs, read_two_runs
from tests.synthetic_cells import analysed, baseline_settings, config, simulated_cell, simulated_run


def run_of(*methods, num_prompts=4, **changes):
    """A baseline and a cell for every method."""
    records = [simulated_cell(baseline_settings(**changes), [], num_prompts=num_prompts)]
    for seed, method in enumerate(methods):
        settings = config(verification__method=method, **changes)
        records.append(simulated_cell(settings, [0.6, 0.5, 0.4], num_prompts=num_prompts, seed=seed))
    return analysed(*records)


def compared(first, second):
    """Title -> table of the comparison of two runs, and its remarks."""
    comparison = compare_runs("old", first, "new", second)
    return {table.title: table for table in comparison.tables}, comparison.remarks


PAIRED = "Paired differences, new − old"


def column(table, name):
    return [row[table.header.index(name)] for row in table.rows]


def test_a_run_played_again_differs_in_nothing():
    cells = run_of("strict", "block")
    tables, remarks = compared(cells, cells)
    assert list(tables) == [PAIRED] and remarks == ()
    assert column(tables[PAIRED], "same answers") == ["4 of 4"] * 3
    assert column(tables[PAIRED], "verification") == ["baseline", "strict", "block"]
    assert column(tables[PAIRED], "acceptance length, full drafts, difference") == ["–", "0", "0"]
    assert column(tables[PAIRED], "output throughput (tok/s), ratio")[1].startswith("1.00 [")


def test_a_setting_that_a_whole_run_has_otherwise_is_listed_and_its_cells_are_paired():
    """Would catch runs before and after a change of one setting that have no cell in common."""
    tables, _ = compared(run_of("strict", "block"), run_of("strict", "block", num_prompts=3, dtype="bfloat16"))
    assert tables["Settings that differ"].rows == (("dtype", "float32", "bfloat16"),)
    assert column(tables[PAIRED], "prompts in common") == ["3"] * 3
    assert column(tables[PAIRED], "verification") == ["baseline", "strict", "block"]


def test_a_setting_that_one_run_sweeps_matches_value_by_value():
    """Would catch a block cell paired with a strict one because the other run has a single method."""
    tables, _ = compared(run_of("strict", "block"), run_of("block"))
    assert column(tables[PAIRED], "verification") == ["baseline", "block"]
    assert tables["Cells without a partner"].rows == (("old", "eagle3, K = 3, T = 1, strict, sampled drafts"),)


def test_the_difference_is_the_second_less_the_first():
    first, second = (
        analysed(simulated_cell(config(), rates, num_prompts=6)) for rates in ([0.4, 0.3, 0.2], [0.8, 0.7, 0.6])
    )
    tables, _ = compared(first, second)
    (text,) = column(tables[PAIRED], "acceptance rate (%), difference")
    assert text.startswith("+") and "[+" in text


def test_other_prompts_are_not_paired():
    """Would catch prompts of two data sets paired because their ids are numbers in both."""
    tables, remarks = compared(run_of("strict"), run_of("strict", workload__path="questions.jsonl"))
    assert PAIRED not in tables and len(tables["Cells without a partner"].rows) == 4
    assert remarks == ("The runs are on different prompts, so no cells are paired.",)


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
    with pytest.raises(SystemExit) as stopped:
        command.main(arguments)
    assert stopped.value.code == 2 and "expected --html" in capsys.readouterr().err
