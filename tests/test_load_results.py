"""Reading results: columns and their definitions, runs and parts of runs, and what is wrong with a path."""

import gzip
import json
import re
from pathlib import Path

import numpy as np
import pytest

from harness.definitions import PER_POSITION, column_names, dictionary
from harness.metrics import load_results
from harness.records import write_cell
from harness.runs import read_runs
from tests.synthetic_cells import (
    cell_record,
    config,
    simulated_run,
)

README = Path(__file__).parents[1] / "results" / "README.md"


def test_columns_are_those_of_the_readme(tmp_path):
    """Would catch a column without a definition, and a README that names columns which do not exist."""
    frame = load_results(simulated_run(tmp_path / "run", depths=(3,), num_prompts=3))
    assert list(frame.columns) == column_names(3)
    rows = re.findall(r"^\| `([^`]+)` \| (.*?) \| (.+) \|$", README.read_text().split("## Columns")[1], re.MULTILINE)
    assert [tuple(row) for row in rows] == dictionary()
    listed = {name.replace(PER_POSITION, str(i)) for name, _, _ in rows for i in range(1, 4)}
    assert {name.removesuffix("_low").removesuffix("_high") for name in frame.columns} == listed
    assert all(text for _, _, text in rows)


def test_results_of_a_run_its_cells_one_file_and_a_folder_of_runs(tmp_path):
    runs = tmp_path / "runs"
    first, second = (simulated_run(runs / name, methods=("strict", "block"), num_prompts=3) for name in ("a", "b"))
    order = json.loads((first / "run.json").read_text())["cells"]
    frame = load_results(first)
    assert list(frame["cell_id"]) == order and set(frame["run"]) == {"a"}
    assert sorted(load_results(first / "cells")["cell_id"]) == sorted(order)
    one = load_results(first / "cells" / f"{order[1]}.json.gz")
    assert list(one["cell_id"]) == [order[1]] and one["speedup"].isna().all()
    both = load_results(runs)
    assert list(both["run"]) == ["a"] * len(order) + ["b"] * len(order)
    assert not both["speedup"].isna().any()
    np.testing.assert_array_equal(load_results(second)["acceptance_rate"], frame["acceptance_rate"])


def test_an_interrupted_run_shows_what_is_there(tmp_path):
    """Would catch a report that fails on an unfinished sweep, or that takes in records of another one."""
    folder = simulated_run(tmp_path / "run", methods=("strict",), num_prompts=3)
    missing = json.loads((folder / "run.json").read_text())["cells"][-1]
    (folder / "cells" / f"{missing}.json.gz").unlink()
    stray = write_cell(cell_record([], 0.0, config(seed=9)), folder / "cells")
    (run,) = read_runs(folder)
    assert run.missing == (missing,) and run.unlisted == (stray.name.removesuffix(".json.gz"),)
    assert len(run.cells) == 3


def damaged_manifest(folder):
    simulated_run(folder, methods=("strict",), num_prompts=2)
    (folder / "run.json").write_text("{")


def damaged_cell(folder):
    simulated_run(folder, methods=("strict",), num_prompts=2)
    next((folder / "cells").iterdir()).write_bytes(gzip.compress(b"{}"))


def no_cells(folder):
    (folder / "cells").mkdir(parents=True)
    (folder / "run.json").write_text('{"cells": [], "num_cells": 4}')


def wrong_cells(folder):
    folder.mkdir()
    (folder / "run.json").write_text('{"cells": 3}')


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(lambda folder: None, "no such file or folder", id="missing"),
        pytest.param(Path.mkdir, "no cell records here", id="empty"),
        pytest.param(no_cells, "no finished cells", id="no cells yet"),
        pytest.param(damaged_manifest, "run.json: expected a run's manifest", id="damaged manifest"),
        pytest.param(wrong_cells, "expected a list of cell ids", id="manifest without a list"),
        pytest.param(damaged_cell, "expected a cell record", id="damaged cell"),
    ],
)
def test_errors_name_the_path_and_what_is_wrong(tmp_path, make, message):
    make(tmp_path / "run")
    with pytest.raises(ValueError, match=message) as error:
        load_results(tmp_path / "run")
    assert str(tmp_path / "run") in str(error.value)
