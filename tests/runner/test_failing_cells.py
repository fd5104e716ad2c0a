"""A cell that fails is recorded with its reason, and the rest of the sweep goes on."""

import csv
import io
import re

import pytest

from experiments import run as command
from harness.analysis.results import read_results
from harness.records.runs import read_runs
from harness.report.write import write_results
from tests.runner.test_backend_seam import DEPTH, run_on

METHODS = [f"drafting.num_speculative_tokens={DEPTH}", "drafter=eagle3", "verification=strict,block"]
SMALL = ["workload.num_prompts=4", "workload.num_turns=1", "measurement.num_resamples=100"]
ON_CPU = ["backend.device=cpu", "backend.dtype=float32", "decoding.temperature=1"]


def run_command(name, folder, *options, module="tests.support.failing_servers"):
    """Run baseline, strict and block on a failing server; the exit code."""
    kind = f"backend.kind={module}:{name}"
    return command.main([*METHODS, *SMALL, *ON_CPU, kind, f"output.folder={folder}", *options])


def records_of(folder):
    """Verification method, or none for the baseline -> record."""
    (run,) = read_runs(folder)
    return {
        "none" if item.config["drafter"]["kind"] == "none" else item.config["verification"]["method"]: item
        for item in run.cells
    }


def test_an_error_fails_its_cell_alone_and_the_exit_code_says_so(tmp_path, capsys):
    """Would catch a sweep that ends with the error, and one that ends as if all were well."""
    assert run_command("Raises", tmp_path, "--format", "csv") == 1
    rows = {row["verification"]: row for row in csv.DictReader(io.StringIO(capsys.readouterr().out))}
    assert rows["block"]["labels"] == "failed" and rows["block"]["output_tokens_per_s"] == ""
    assert rows["strict"]["labels"] == "" and float(rows["strict"]["speedup"]) > 1
    records = records_of(tmp_path)
    (failure,) = records["block"].failures
    place = r"\(tests/support/failing_servers\.py, line \d+, in fail\)"
    assert failure.error == "RuntimeError"
    assert re.fullmatch(rf"out of memory\nwith a second line {place}", failure.message)
    # where it was raised, without a folder of this machine
    assert 'File "tests/support/failing_servers.py"' in failure.traceback and 'File "/' not in failure.traceback
    assert not records["block"].requests and len(records["strict"].requests) == len(records["none"].requests) == 4
    text = (tmp_path / "report.md").read_text()
    assert "failed: RuntimeError: out of memory with a second line" in text


@pytest.mark.parametrize(("name", "code"), [("LosesRequests", 1), ("LosesCounters", 0)])
def test_the_exit_code_says_that_requests_failed(name, code, tmp_path, capsys):
    """Would catch a script that goes on as if all had been answered, the same command again that forgets it, and a
    failure of other kinds that --retry-failed would not run again."""
    for _ in range(2):
        assert run_command(name, tmp_path, module="tests.support.fake_servers") == code
        assert ("requests failed in 3 cells; --retry-failed" in capsys.readouterr().err) == bool(code)
    assert all(item.failures and item.requests for item in records_of(tmp_path).values())


@pytest.mark.parametrize("name", ["Raises", "BaselineRaises", "CannotBeMade"])
def test_a_report_compares_nothing_with_a_failed_cell(name, tmp_path):
    """Would catch a division by zero, a speedup over a failed baseline, and pairs of cells without numbers."""
    folder, frame = run_on(tmp_path, name, module="tests.support.failing_servers")
    results = read_results(folder)
    write_results(results, folder, html=True)
    failed = [cell for cell in results.cells if cell.record.has_failed]
    assert len(failed) == {"Raises": 1, "BaselineRaises": 1, "CannotBeMade": 3}[name]
    assert not any(cell.baseline.record.has_failed for cell in results.cells if cell.baseline is not None)
    assert frame["speedup"].notna().sum() == {"Raises": 2, "BaselineRaises": 0, "CannotBeMade": 0}[name]
    with (folder / "tables" / "summary.csv").open() as file:
        shown = [row["speedup"] for row in csv.DictReader(file) if row["output throughput (tok/s)"] == "n/a"]
    assert shown == ["n/a"] * len(failed)
    pairs = (folder / "tables" / "paired.csv").read_text()
    assert ("block" in pairs) == (name == "BaselineRaises")


def test_a_failed_cell_has_the_same_id_in_every_run(tmp_path):
    """Would catch a record that a second run does not recognise."""
    for name in ("once", "again"):
        run_on(tmp_path / name, "Raises", module="tests.support.failing_servers")
    assert records_of(tmp_path / "once")["block"].cell_id == records_of(tmp_path / "again")["block"].cell_id


def test_failures_alone_do_not_replace_the_results_of_an_earlier_run(tmp_path, monkeypatch, capsys):
    """Would catch a report of failures in the place of one with results, and results of others returned as a run's."""
    assert run_command("Raises", tmp_path) == 1
    kept = {name: (tmp_path / name).read_bytes() for name in ("run.json", "report.md")}
    for options in ((), ("--retry-failed",)):
        capsys.readouterr()
        assert run_command("CannotBeMade", tmp_path, "seed=1", *options) == 1
        assert {name: (tmp_path / name).read_bytes() for name in kept} == kept
        told = capsys.readouterr()
        assert not told.out and f"found that all 3 failed; {tmp_path} keeps the results and the report" in told.err
    monkeypatch.setenv("SERVER_IS_MENDED", "1")
    assert run_command("Raises", tmp_path, "seed=1") == 0
    assert {item.config["seed"] for item in records_of(tmp_path).values()} == {1}


def test_cells_that_fail_of_the_same_are_told_of_once(tmp_path, capsys):
    """Would catch one line for each of a hundred cells, in the run that fails and in the next one."""
    assert run_command("CannotBeMade", tmp_path, "decoding.max_new_tokens=8,9") == 1
    first, other = [line for line in capsys.readouterr().err.splitlines() if line.startswith("failed: ")]
    assert first.count("T=1") == 3 and "no such server" in first
    assert other.count("T=1") == 4 and other.endswith(": as baseline T=1")
    assert run_command("CannotBeMade", tmp_path, "decoding.max_new_tokens=8,9") == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("failed before: ")]
    assert len(lines) == 2 and all(line.endswith("; --retry-failed runs them again") for line in lines)


@pytest.mark.parametrize("options", [(), ("--retry-failed",), ("--fresh",)], ids="".join)
def test_a_failed_cell_is_run_again_only_if_asked_for(options, tmp_path, monkeypatch, capsys):
    """Would catch a failure that a second run forgets, or one that stays beside the record that takes its place."""
    run_command("Raises", tmp_path)
    failed = records_of(tmp_path)["block"].cell_id
    monkeypatch.setenv("SERVER_IS_MENDED", "1")
    assert run_command("Raises", tmp_path, *options) == (0 if options else 1)
    record = records_of(tmp_path)["block"]
    assert record.has_failed == (not options) and (record.cell_id == failed) == (not options)
    assert len(list((tmp_path / "cells").iterdir())) == 3
