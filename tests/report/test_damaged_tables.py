"""Tables and notes of a run that lie beside its records, with one thing changed: read as they stand, or refused."""

import csv
import io
import json
from dataclasses import asdict

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import status as command
from harness.analysis import load_results
from harness.analysis.certification import CERTIFICATION, load_certification
from harness.analysis.columns import TEXT_COLUMNS
from harness.analysis.results import read_results
from harness.checks.kernel_bench.history import Line, read_history
from harness.records.process_name import ProcessName
from harness.records.run_status import STATUS
from harness.report.write import rows
from harness.runner import lease
from harness.runner.manifest import Manifest
from tests.report.test_damaged_files import often, read_or_refused
from tests.runner.test_status import STATUS_OF_A_RUN
from tests.support.damaged_json import damaged
from tests.support.resumed_runs import plan_of, run
from tests.support.synthetic_cells import simulated_run

FIELDS = ("", "x", "nan", "inf", "1e999", "-1", "1_000", " 1", "1" * 400, "True", "a\nb", '"')
"""What takes the place of a field."""
HISTORY = "commit,device,case,median_us,scatter_us\n" + "".join(
    f"{commit * 40},a GPU,{case},{median_us},0.5\n"
    for commit in "12"
    for case, median_us in (("a b", 20.5), ("c", 9.0))
)


@st.composite
def damaged_table(draw, table):
    """Strategy: a CSV with a field of one row less, more or other, or cut at its end; and what may then be read."""
    header, *lines = csv.reader(io.StringIO(table))
    kind = draw(st.sampled_from(["other", "other", "less", "more", "cut"]))
    if kind == "cut":
        num_bytes = draw(st.integers(0, len(table) - 2))
        return table[:num_bytes], None
    row, column = draw(st.integers(0, len(lines) - 1)), draw(st.integers(0, len(header) - 1))
    change = draw(st.sampled_from(FIELDS)) if kind == "other" else "1"
    lines[row][column : column + (kind != "more")] = [] if kind == "less" else [change]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *lines])
    return text.getvalue(), (row, header[column], change) if kind == "other" else None


def test_a_damaged_table_of_cells_is_read_or_refused(tmp_path):
    """Would catch fields that move to other columns, half a number, infinity, and a text among numbers."""
    folder = simulated_run(tmp_path / "run", methods=("strict",), temperatures=(1.0,), num_prompts=2)
    table, path = rows(read_results(folder), "csv"), tmp_path / "cells.csv"
    path.write_text(table)
    whole = load_results(path)

    @often
    @given(damaged_table(table))
    def check(found):
        text, change = found
        path.write_bytes(text.encode())
        frame = read_or_refused(lambda: load_results(path), str(path))
        if change is None:
            # whole lines may be missing
            assert frame is None or frame.astype(str).equals(whole.head(len(frame)).astype(str))
        elif frame is not None:
            row, column, value = change
            read = frame[column][row]
            assert frame.drop(columns=column).equals(whole.drop(columns=column))
            assert read == value if column in TEXT_COLUMNS else pd.isna(read) or read in (-1, 1, True)

    check()


def test_a_damaged_history_of_times_is_read_or_refused(tmp_path):
    """Would catch a time that is none, with which every later one seems as fast, and an error without its file."""
    path = tmp_path / "history.csv"
    path.write_text(HISTORY)
    whole = read_history(path)

    @often
    @given(damaged_table(HISTORY))
    def check(found):
        path.write_bytes(found[0].encode())
        for index, line in enumerate(read_or_refused(lambda: read_history(path), str(path)) or ()):
            assert isinstance(line, Line) and line.commit and 0 < line.median_us < 1e300 and line.scatter_us >= 0
            assert found[1] is not None or line == whole[index]

    check()
    path.write_bytes(b"\xff")
    assert read_or_refused(lambda: read_history(path), str(path)) is None


def test_a_damaged_status_is_told_or_refused(tmp_path, capsys):
    """Would catch a traceback of the command that is asked in the night, and a process that the file does not name."""
    STATUS_OF_A_RUN.write(tmp_path)

    @often
    @given(damaged(json.loads((tmp_path / STATUS).read_text())))
    def check(found):
        (tmp_path / STATUS).write_bytes(found.text)
        code, told = command.main([str(tmp_path)]), capsys.readouterr()
        if told.err:
            assert code == 2 and told.err.startswith("error: ") and told.err.count("\n") == 1
            assert str(tmp_path) in told.err and not told.out
        else:
            # one whose process is taken for dead has no records here
            assert (code == 2) == ("missing: run.json" in told.out)
            numbers = told.out.removeprefix(str(tmp_path)).replace("device-hours", "").replace("--retry-failed", "")
            assert " cells done" in numbers and "-" not in numbers

    whole = json.loads((tmp_path / STATUS).read_text())
    check()
    (tmp_path / STATUS).write_text(json.dumps(whole | {"elapsed_s": 1e308}))
    assert command.main([str(tmp_path)]) == 2 and "elapsed_s: " in capsys.readouterr().err


@pytest.mark.parametrize("name", ["host", "pid", "updated_unix_s"])
def test_a_status_that_does_not_say_whose_it_is_is_not_taken_for_this_process(name, tmp_path, capsys):
    STATUS_OF_A_RUN.write(tmp_path)
    fields = json.loads((tmp_path / STATUS).read_text())
    del fields[name]
    (tmp_path / STATUS).write_text(json.dumps(fields))
    assert command.main([str(tmp_path)]) == 2 and name in capsys.readouterr().err


def test_a_damaged_certification_is_read_or_refused(tmp_path):
    """Would catch a text among p-values."""
    number = dict.fromkeys(("num_samples", "acceptance_rate", "df", "statistic", "p_value", "variation"), 0.5)
    outcome = {"name": "a", "is_control": False, "verdict": "pass", **number}

    @often
    @given(damaged({"outcomes": [outcome, outcome | {"name": "b"}]}))
    def check(found):
        (tmp_path / CERTIFICATION).write_bytes(found.text)
        frame = read_or_refused(lambda: load_certification(tmp_path), str(tmp_path))
        if frame is not None and len(frame):
            values = frame[list(number)].to_numpy().ravel().tolist()
            assert all(value is None or type(value) in (int, float) for value in values)

    check()


def test_a_damaged_manifest_lists_only_cells_that_are_there(tmp_path):
    """Would catch a run that ends with a traceback when its first cell is finished, and a cell that is not there."""
    folder = tmp_path / "run"
    run(folder)
    manifest = json.loads((folder / "run.json").read_text())
    cells, plan = manifest["cells"], plan_of(folder)

    @often
    @given(damaged(manifest))
    def check(found):
        (folder / "run.json").write_bytes(found.text)
        Manifest(plan, folder, []).add(1, cells[1], False)
        listed = json.loads((folder / "run.json").read_text())["cells"]
        assert cells[1] in listed and len(set(listed)) == len(listed) and set(listed) <= set(cells)

    check()


def test_a_damaged_lease_ends_no_run(tmp_path, monkeypatch):
    """Would catch a folder that stays locked for good by a file that a power cut has left."""
    monkeypatch.setattr(lease, "STALE_S", 0.0)
    holder = {**asdict(ProcessName.here()), "host": "another", "beats": "000000000001"}

    @often
    @given(damaged(holder))
    def check(found):
        (tmp_path / "lease.1").write_bytes(found.text)
        with lease.leased(tmp_path):
            assert not (tmp_path / "lease.1").exists() and (tmp_path / "lease.2").exists()

    check()
