"""Parts of a run that were measured on hosts without a shared folder, put together by copying."""

from dataclasses import replace
from shutil import copytree

import pytest

from harness.analysis import load_results
from harness.analysis.results import read_results
from harness.report.missing_values import OTHER_SESSIONS, missing_value_notes
from harness.runner.run_cells import run_cells
from tests.support.resumed_runs import Told, differences, plan_of, run


def put_together(whole, *parts):
    """Copy what the README says into one folder."""
    for part in parts:
        for name in ("cells", "checkpoints"):
            copytree(part / name, whole / name, dirs_exist_ok=True)


def play(folder, cells):
    """Run cells; returns what was told."""
    told = Told()
    run_cells(replace(plan_of(folder), cells=tuple(cells)), folder, told, [])
    return told


def test_groups_of_several_hosts_become_one_run(tmp_path):
    """Would catch cells that are run again, or left out of the report, after their folders were put together."""
    one, other, whole, undisturbed = (tmp_path / name for name in ("one", "other", "whole", "undisturbed"))
    hot = plan_of(whole).cells
    cold = [replace(cell, decoding=replace(cell.decoding, temperature=0.5)) for cell in hot]
    play(one, hot)
    play(other, cold)
    put_together(whole, one, other)
    told = play(whole, [*hot, *cold])
    assert told.num_requests == 0
    play(undisturbed, [*hot, *cold])
    assert not differences(undisturbed, whole) and load_results(whole)["speedup"].notna().all()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_baseline_that_two_hosts_measured_is_kept_once(order, tmp_path):
    """Would catch a record that counts as edited since another host has measured it too, and a speedup over the times
    of another host."""
    parts, whole = [tmp_path / "one", tmp_path / "other"], tmp_path / "whole"
    baseline, strict, block = plan_of(whole).cells
    play(parts[0], [baseline, strict])
    play(parts[1], [baseline, block])
    put_together(whole, *(parts[index] for index in order))
    told, _ = run(whole)
    assert told.num_requests == 0 and any("measured twice" in note for note in told.notes)
    assert not list(whole.glob("*/*.damaged"))
    results = read_results(whole)
    with_speedup = [cell["verification"] for cell in results.cells if cell.speedup.value > 0 and not cell.is_baseline]
    assert with_speedup == [("strict", "block")[order[-1]]]
    assert any(OTHER_SESSIONS in line for line in missing_value_notes(results.cells, ["speedup"]))
    again, _ = run(whole)
    assert again.num_requests == 0 and not any("measured twice" in note for note in again.notes)
