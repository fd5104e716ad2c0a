"""How the run command ends without a model: what it prints, and what it reports of a run that was stopped."""

import csv
import io
import json

import pytest

from experiments import run as command
from harness.runner import whole_run
from tests.support.stand_in_sweeps import finished, stop
from tests.support.synthetic_cells import simulated_run


def test_rows_of_every_format_go_to_standard_output(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(whole_run, "run_plan", finished(tmp_path))
    shown = {}
    for row_format in ("csv", "json", "md"):
        assert command.main(["drafter=mtp", f"output.folder={tmp_path}", "--format", row_format]) == 0
        shown[row_format] = capsys.readouterr().out
    rows = list(csv.DictReader(io.StringIO(shown["csv"])))
    assert [row["verification"] for row in rows] == ["", "strict", "block"]
    assert float(rows[1]["acceptance_rate_low"]) <= float(rows[1]["acceptance_rate"])
    from_json = json.loads(shown["json"])
    assert [row["cell_id"] for row in from_json] == [row["cell_id"] for row in rows]
    assert from_json[0]["acceptance_rate"] is None
    table = [line for line in shown["md"].splitlines() if line.startswith("|")]
    assert len(table) == 2 + 3


def test_without_a_format_a_summary_is_printed(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(whole_run, "run_plan", finished(tmp_path))
    assert command.main(["drafter=mtp", f"output.folder={tmp_path}"]) == 0
    captured = capsys.readouterr()
    assert "strict" in captured.out
    assert "results in" in captured.err
    assert list((tmp_path / "tables").iterdir())


@pytest.mark.parametrize(
    ("error", "exit_code", "first", "last"),
    [
        (KeyboardInterrupt(), 130, "interrupted: 3 of 2 cells were finished", "report: "),
        (ValueError("the disk is gone"), 1, "stopped: 3 of 2 cells were finished", "error: the disk is gone"),
        (OSError("no space left"), 1, "stopped: 3 of 2 cells were finished", "error: no space left"),
    ],
    ids=["interruption", "wrong value", "system"],
)
def test_a_run_that_was_stopped_reports_what_was_finished(error, exit_code, first, last, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(whole_run, "run_plan", finished(tmp_path, error))
    assert command.main(["drafter=mtp", f"output.folder={tmp_path}", "--format", "csv"]) == exit_code
    captured = capsys.readouterr()
    assert len(list(csv.DictReader(io.StringIO(captured.out)))) == 3
    lines = captured.err.splitlines()
    assert lines[1].startswith(first)
    assert "finished cells are kept" in lines[1]
    assert lines[-1].startswith(last)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("the folder holds no weights")])
def test_results_of_an_earlier_run_are_not_reported_as_those_of_a_run_that_was_stopped(
    error, monkeypatch, capsys, tmp_path
):
    simulated_run(tmp_path, temperatures=(1.0,), methods=("strict",), num_prompts=6)
    before = (tmp_path / "run.json").read_bytes()
    monkeypatch.setattr(whole_run, "run_plan", stop(error))
    assert command.main(["drafter=mtp", f"output.folder={tmp_path}", "--format", "csv"]) in (1, 130)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "no cell was finished" in captured.err
    assert "still holds the results of an earlier run" in captured.err
    assert "kept" not in captured.err
    assert not (tmp_path / "report.md").exists()
    assert (tmp_path / "run.json").read_bytes() == before


def test_cells_of_an_earlier_run_in_the_folder_are_not_reported(monkeypatch, capsys, tmp_path):
    earlier = simulated_run(tmp_path, temperatures=(0.0,), methods=("coupled",), num_prompts=6)
    old = json.loads((earlier / "run.json").read_text())["cells"]
    monkeypatch.setattr(whole_run, "run_plan", finished(tmp_path, KeyboardInterrupt()))
    assert command.main(["drafter=mtp", f"output.folder={tmp_path}", "--format", "csv"]) == 130
    shown = {row["cell_id"] for row in csv.DictReader(io.StringIO(capsys.readouterr().out))}
    assert shown == set(json.loads((tmp_path / "run.json").read_text())["cells"])
    assert not shown & set(old)


def test_a_run_stopped_before_its_first_manifest_was_written_does_not_report_the_older_one(
    monkeypatch, capsys, tmp_path
):
    simulated_run(tmp_path, temperatures=(1.0,), methods=("strict",), num_prompts=6)

    def run_plan(plan, finished_cells):
        finished_cells.append("new")
        raise KeyboardInterrupt

    monkeypatch.setattr(whole_run, "run_plan", run_plan)
    assert command.main(["drafter=mtp", f"output.folder={tmp_path}", "--format", "csv"]) == 130
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "report.md").exists()


def test_an_interruption_before_the_first_cell_reports_nothing(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(whole_run, "run_plan", stop(KeyboardInterrupt()))
    assert command.main(["drafter=mtp", f"output.folder={tmp_path / 'new'}"]) == 130
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "interrupted: no cell was finished, nothing to report" in captured.err


def test_what_goes_wrong_in_the_run_is_one_line_or_a_traceback(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(whole_run, "run_plan", stop(ValueError("the folder holds no weights")))
    arguments = ["drafter=mtp", f"output.folder={tmp_path / 'new'}"]
    assert command.main(arguments) == 1
    # behind it a place, once code in this folder has been the user's own
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: the folder holds no weights")
    with pytest.raises(ValueError, match="no weights"):
        command.main([*arguments, "--debug"])


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), ValueError("the folder holds no weights")], ids=["key", "value"]
)
def test_a_run_that_fails_before_its_first_file_leaves_no_folder(error, monkeypatch, tmp_path):
    """Would catch an empty results folder that looks like a run's."""

    def run_plan(plan, finished_cells):
        (plan.folder / "cells").mkdir()
        raise error

    monkeypatch.setattr(whole_run, "run_plan", run_plan)
    assert command.main(["drafter=mtp", f"output.folder={tmp_path / 'runs' / 'new'}"]) in (1, 130)
    assert not list(tmp_path.iterdir())


def test_a_run_that_fails_removes_nothing_that_was_there_or_that_it_wrote(monkeypatch, tmp_path):
    """Would catch data lost with the folder of a run that failed: a file of its own, and a folder made before it."""
    (tmp_path / "mine" / "notes").mkdir(parents=True)

    def run_plan(plan, finished_cells):
        (plan.folder / "cells").mkdir()
        (plan.folder / "cells" / "terms.npz").write_bytes(b"terms")
        raise ValueError("the disk is full")

    monkeypatch.setattr(whole_run, "run_plan", run_plan)
    assert command.main(["drafter=mtp", f"output.folder={tmp_path / 'new'}"]) == 1
    assert (tmp_path / "new" / "cells" / "terms.npz").read_bytes() == b"terms"
    monkeypatch.setattr(whole_run, "run_plan", stop(KeyboardInterrupt()))
    assert command.main(["drafter=mtp", f"output.folder={tmp_path / 'mine'}"]) == 130
    assert (tmp_path / "mine" / "notes").is_dir()
