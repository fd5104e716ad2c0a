"""Reading results: columns and their definitions, runs and parts of runs, and what is wrong with a path."""

import gzip
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments import replay, report, reproduce
from harness.analysis.certification import COLUMNS, load_certification
from harness.analysis.columns import COUNTS, PAIRED_COLUMNS, PER_POSITION, column_names, dictionary, is_count
from harness.analysis.comparison import comparisons_frame
from harness.analysis.frame import load_results
from harness.analysis.results import read_results
from harness.checks.kernel_bench.report import KERNEL_COLUMNS
from harness.records.files import write_atomically, write_cell
from harness.records.runs import read_runs
from harness.report.write import rows
from tests.support.synthetic_cells import cell_record, config, simulated_run

pytestmark = pytest.mark.fast

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
COLUMNS_PAGE = ROOT / "harness" / "analysis" / "COLUMNS.md"


def rows_below(heading):
    """The rows of the first table below a heading of the README, (column, unit, definition)."""
    text = COLUMNS_PAGE.read_text().split(heading)[1].split("\n#")[0]
    return re.findall(r"^\| `([^`]+)` \| (?:(.*?) \| )?(.+) \|$", text, re.MULTILINE)


def test_columns_of_the_other_tables_are_those_of_the_readme(tmp_path):
    """Would catch an undocumented column of comparisons, certifications or the kernel benchmark."""
    run = simulated_run(tmp_path / "run", depths=(3,), num_prompts=3)
    frame = comparisons_frame(read_results(run).cells)
    listed = rows_below("### Columns of paired.csv\n")
    assert listed == [(name, item.unit, item.definition) for name, item in PAIRED_COLUMNS.items()]
    assert list(frame.columns) == list(PAIRED_COLUMNS) and not frame["metric"].isna().any()
    assert rows_below("### Columns of the kernel benchmark\n") == [
        (name, item.unit, item.definition) for name, item in KERNEL_COLUMNS.items()
    ]
    for table in RESULTS.glob("kernel_bench*/table.csv"):
        assert table.read_text().splitlines()[0] == ",".join(KERNEL_COLUMNS)
    found = load_certification(RESULTS / "certify_cpu")
    assert [(row[0], row[2]) for row in rows_below("### Columns of a certification\n")] == list(COLUMNS.items())
    assert list(found.columns) == list(COLUMNS) and found["is_control"].any() and not found["verdict"].isna().any()


def test_a_file_that_is_no_certification_is_named(tmp_path):
    for content in ("", "{}", '{"outcomes": 3}', '{"outcomes": [3]}'):
        (tmp_path / "certification.json").write_text(content)
        with pytest.raises(ValueError, match="expected a certification") as error:
            load_certification(tmp_path)
        assert str(tmp_path) in str(error.value)


def test_columns_are_those_of_the_readme(tmp_path):
    """Would catch a column without a definition, and a README that names columns which do not exist."""
    frame = load_results(simulated_run(tmp_path / "run", depths=(3,), num_prompts=3))
    assert list(frame.columns) == column_names(3)
    rows = rows_below("## Columns\n")
    assert [tuple(row) for row in rows] == dictionary()
    listed = {name.replace(PER_POSITION, str(i)) for name, _, _ in rows for i in range(1, 4)}
    assert {name.removesuffix("_low").removesuffix("_high") for name in frame.columns} == listed
    assert all(text for _, _, text in rows)


def test_a_share_that_some_cells_lack_stays_a_share(tmp_path):
    """Would catch a share that is taken for a count: the table of a run whose baseline has none could not be made."""
    run = simulated_run(tmp_path / "run", methods=("strict",), num_prompts=3)
    for cell in read_results(run).cells:
        if not cell.is_baseline:
            write_cell(replace(cell.record, shared_mass=0.9944), run / "cells")
    frame = load_results(run)
    assert set(frame["shared_mass"].dropna()) == {0.9944} and frame["shared_mass"].isna().any()
    assert {name for name in COUNTS if is_count(name) and not name.startswith("num_")} == {
        *("first_other_token", "draft_logit_cache_bytes", "target_cache_bytes", "drafter_cache_bytes", "graph_bytes"),
        "drafter_positions",
    }


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


def damaged_cells(folder):
    simulated_run(folder, methods=("strict",), num_prompts=2)
    for path in (folder / "cells").iterdir():
        path.write_bytes(gzip.compress(b"{}"))


def no_cells(folder):
    (folder / "cells").mkdir(parents=True)
    (folder / "run.json").write_text('{"cells": [], "num_cells": 4}')


def wrong_cells(folder):
    folder.mkdir()
    (folder / "run.json").write_text('{"cells": 3}')


def newer_manifest(folder):
    folder.mkdir()
    (folder / "run.json").write_text('{"schema_version": 99}')


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(newer_manifest, "run.json: .*schema 99.*update this program", id="newer manifest"),
        pytest.param(lambda folder: None, "no such file or folder", id="missing"),
        pytest.param(Path.mkdir, "no cell records here", id="empty"),
        pytest.param(no_cells, "no finished cells", id="no cells yet"),
        pytest.param(damaged_manifest, "run.json: expected a run's manifest", id="damaged manifest"),
        pytest.param(wrong_cells, "run.json: .* cells: expected a list", id="manifest without a list"),
        pytest.param(damaged_cells, "expected a cell record .*, found no 'schema_version'.*more", id="damaged cells"),
    ],
)
def test_errors_name_the_path_and_what_is_wrong(tmp_path, make, message):
    make(tmp_path / "run")
    with pytest.raises(ValueError, match=message) as error:
        load_results(tmp_path / "run")
    assert str(tmp_path / "run") in str(error.value)


def only_a_report(folder):
    simulated_run(folder, methods=("strict",), num_prompts=2)
    shutil.rmtree(folder / "cells")
    (folder / "tables").mkdir()
    (folder / "report.md").write_text("# A report\n")
    manifest = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(manifest | {"command": "python -m experiments.run drafter=mtp"}))


@pytest.mark.parametrize("module", [report, reproduce, replay])
@pytest.mark.parametrize("parent", [False, True], ids=["a run", "a folder of runs"])
def test_a_report_whose_records_were_not_kept_is_told_from_a_run_that_did_not_get_that_far(
    module, parent, tmp_path, capsys
):
    """Would catch advice to wait for a run that has long been reported, and the exit code of other tokens."""
    only_a_report(tmp_path / "run")
    assert module.main([str(tmp_path if parent else tmp_path / "run")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"those of run run are not kept here. Its report is {tmp_path / 'run' / 'report.md'}," in line
    assert line.endswith("run it again with: python -m experiments.run drafter=mtp")


def without_records(folder):
    """A run whose report was written and whose records were then removed, as in the tracked results."""
    simulated_run(folder, methods=("strict", "block"), num_prompts=3)
    frame = load_results(folder)
    write_atomically(folder / "tables" / "cells.csv", rows(read_results(folder), "csv").encode())
    shutil.rmtree(folder / "cells")
    return frame


def test_a_table_of_cells_stands_for_records_that_are_not_there(tmp_path):
    """Would catch digits lost on the way, empty texts read as missing, and columns of another type."""
    expected = without_records(tmp_path / "runs" / "a")
    for path in ("runs/a", "runs/a/tables/cells.csv", "runs"):
        pd.testing.assert_frame_equal(load_results(tmp_path / path), expected, check_exact=True)


def test_tables_of_several_runs_are_read_together(tmp_path):
    frames = [without_records(tmp_path / name) for name in ("a", "b")]
    pd.testing.assert_frame_equal(load_results(tmp_path), pd.concat(frames, ignore_index=True))


def test_records_come_before_a_table(tmp_path):
    """Would catch an old table read in place of the records beside it."""
    folder = simulated_run(tmp_path / "run", methods=("strict",), num_prompts=2)
    write_atomically(folder / "tables" / "cells.csv", b"run,cell_id\nold,1\n")
    assert len(load_results(folder)) == 4


@pytest.mark.parametrize("content", ["a,b\n1,2\n", "run\nx\n", ""], ids=["other columns", "no cell id", "nothing"])
def test_a_file_that_is_no_table_of_cells_is_named(tmp_path, content):
    (tmp_path / "cells.csv").write_text(content)
    with pytest.raises(ValueError, match="expected") as error:
        load_results(tmp_path / "cells.csv")
    assert str(tmp_path / "cells.csv") in str(error.value)


UNTRACKED = RESULTS / "runs"
TRACKED = sorted(path.parents[1] for path in RESULTS.rglob("tables/cells.csv") if not path.is_relative_to(UNTRACKED))


@pytest.mark.parametrize("folder", TRACKED, ids=lambda path: path.name)
def test_tracked_results_can_be_loaded(folder):
    frame = load_results(folder)
    documented = {name for name, _, _ in rows_below("## Columns\n")}
    for column in frame.columns:
        assert re.sub(r"per_pos_\d+", "per_pos_<i>", re.sub(r"_(low|high)$", "", column)) in documented, column
    assert len(frame) and frame["cell_id"].is_unique
    drafted = frame[frame["drafter"] != "none"]
    if len(drafted):
        assert drafted["acceptance_rate"].between(0, 1).any()
    else:
        assert (frame["output_tokens_per_s"] > 0).all()
