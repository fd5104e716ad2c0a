"""Estimates of time and disk by `run --list`."""

import csv
from dataclasses import replace

import pytest

from harness.config.backend import Server
from harness.config.cell import CellConfig
from harness.config.drafter import DrafterKind, drafter_of
from harness.config.sections import MeasurementConfig
from harness.config.workload import WorkloadConfig
from harness.runner.estimate import estimate_lines
from harness.runner.listing import listing
from harness.runner.plan.run_plan import RunPlan
from kernels.methods import VerificationMethod
from kernels.verification import Verification

pytestmark = pytest.mark.fast

BASELINE = CellConfig(workload=WorkloadConfig(num_prompts=8, num_turns=1))
DRAFTED = CellConfig(drafter=drafter_of(DrafterKind.mtp), workload=WorkloadConfig(num_prompts=8, num_turns=1))
NUM_REQUESTS = 8


def write_run(runs, *rows, beside_s=None):
    """An earlier run: of each cell its drafter, requests and seconds; and of all the seconds beside the clock."""
    folder = runs / "earlier" / "tables"
    folder.mkdir(parents=True)
    settings = {
        "target": "zoo",
        "target_weights": "checkpoint",
        "max_new_tokens": BASELINE.decoding.max_new_tokens,
        "max_concurrency": BASELINE.backend.max_concurrency,
        "device": "cpu",
    }
    lines = [
        settings
        | {"drafter": drafter, "num_speculative_tokens": 0 if drafter == "none" else 4}
        | {"num_requests": num_requests, "wall_s": wall_s}
        | ({} if beside_s is None else {"beside_s": beside_s})
        for drafter, num_requests, wall_s in rows
    ]
    with (folder / "cells.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, lines[0])
        writer.writeheader()
        writer.writerows(lines)


HALF_AN_HOUR = "30 min 00 s of device time"


@pytest.mark.parametrize(
    ("rows", "cells", "time"),
    [
        pytest.param(
            [("none", 4, 900.0), ("mtp", 4, 9000.0)],
            (BASELINE,),
            "30 min 00 s of device time",
            id="by requests, of its own drafter",
        ),
        pytest.param(
            [("none", 4, 900.0), ("mtp", 4, 9000.0)], (BASELINE, DRAFTED), "5.5 device-hours", id="sum over cells"
        ),
        pytest.param([("ngram", 4, 900.0)], (DRAFTED,), HALF_AN_HOUR, id="another drafter of the same target"),
        pytest.param(
            [("mtp", 0, 0.0), ("mtp", 4, 900.0)],
            (DRAFTED,),
            "30 min 00 s of device time",
            id="failed cells tell nothing",
        ),
    ],
)
def test_time_is_that_of_earlier_cells(rows, cells, time, tmp_path):
    """Would catch seconds of a whole cell taken for those of a request, and a failed cell that took no time."""
    write_run(tmp_path, *rows)
    assert f"about {time} for {len(cells)} of {len(cells)} cells" in estimate_lines(cells, [tmp_path])[0]


@pytest.mark.parametrize(
    ("beside_s", "time"),
    [
        pytest.param(2700, "about 2.0 device-hours (1.5 device-hours of it beside the clock) for", id="known"),
        pytest.param("", "about 30 min 00 s of device time for", id="not known"),
    ],
)
def test_time_beside_the_clock_counts(beside_s, time, tmp_path):
    """Would catch an estimate of the measured time alone."""
    write_run(tmp_path, ("none", 4, 900.0), beside_s=beside_s)
    assert time in estimate_lines((BASELINE,), [tmp_path])[0]


@pytest.mark.parametrize("is_recorded", [True, False], ids=["recorded", "not recorded"])
def test_terms_of_several_drafts_are_called_slow(is_recorded, tmp_path):
    cell = replace(
        DRAFTED,
        verification=Verification(VerificationMethod.probabilistic),
        measurement=MeasurementConfig(round_terms=True, multi_draft_terms=is_recorded),
    )
    assert ("several times as long" in "".join(estimate_lines((cell,), [tmp_path]))) is is_recorded


def test_a_server_takes_its_own_time(tmp_path):
    """Would catch a server's cells that are told by how long this engine took."""
    write_run(tmp_path, ("none", 4, 900.0))
    assert "not known of 1 cells" in estimate_lines((replace(BASELINE, backend=Server()),), [tmp_path])[0]


def test_no_time_is_made_up(tmp_path):
    (time, disk) = estimate_lines((BASELINE, DRAFTED), [tmp_path])
    assert "not known of 2 cells" in time
    assert f"{30 * 2 * NUM_REQUESTS * BASELINE.decoding.max_new_tokens / 1e6:.2g} MB" in disk


def test_a_table_of_another_form_is_passed_over(tmp_path):
    write_run(tmp_path, ("none", 4, 900.0))
    (tmp_path / "other" / "tables").mkdir(parents=True)
    (tmp_path / "other" / "tables" / "cells.csv").write_text("target,wall_s\nzoo,\n")
    assert "30 min 00 s of device time" in estimate_lines((BASELINE,), [tmp_path])[0]


def test_a_list_knows_what_ran_beside_it(tmp_path, monkeypatch):
    """Would catch a run with a folder of its own whose time is not known, though its cells or its neighbours ran, and a
    folder that is read twice."""
    write_run(tmp_path / "elsewhere", ("none", 4, 900.0))
    plan = RunPlan("test", "a test", (BASELINE,), (), tmp_path / "elsewhere" / "new", "command")
    monkeypatch.chdir(tmp_path)
    assert "about 30 min 00 s of device time for 1 of 1 cells" in "\n".join(listing(plan)[1])
    write_run(tmp_path / "results" / "runs", ("none", 4, 1800.0), ("none", 4, 1800.0))
    beside = replace(plan, folder=tmp_path / "results" / "runs" / "new")
    assert "about 1.0 device-hours" in (line := "\n".join(listing(beside)[1])) and line.count("results/runs") == 1
