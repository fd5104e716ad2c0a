"""Runs that are stopped and go on: what is run, and how a resumed run differs from one that was not disturbed."""

import json
from dataclasses import replace
from pathlib import Path

from pandas.testing import assert_frame_equal

from harness.analysis import load_results
from harness.analysis.definitions import METRICS
from harness.config.backend import backend_of
from harness.config.cell import CellConfig, DecodingConfig, MeasurementConfig, WorkloadConfig
from harness.config.drafter import DrafterKind, drafter_of
from harness.records.files import read_cell
from harness.records.same_tokens import same_tokens
from harness.runner.plan.run_plan import Resume
from harness.runner.run_cells import run_cells
from kernels.contract import VerificationMethod
from kernels.verification import Verification
from tests.runner.test_sweep import Silent, plan

NUM_PROMPTS = 10
TOKEN_METRICS = [name for name, metric in METRICS.items() if metric.of_tokens]
COLUMNS = ["cell_id", "verification", "num_requests", "num_output_tokens", "num_rounds", "num_accepted_tokens"]
COLUMNS += [name + end for name in TOKEN_METRICS for end in ("", "_low", "_high")]
"""Columns of the results that do not depend on times, which belong to sessions."""


class Told(Silent):
    """Remembers what the user was told."""

    def __init__(self):
        super().__init__()
        self.notes = []

    def note(self, text):
        self.notes.append(text)


def plan_of(folder, **changes):
    """A baseline and two methods on a scripted server."""
    cell = CellConfig(
        drafter=drafter_of(DrafterKind.eagle3),
        decoding=DecodingConfig(temperature=1.0, max_new_tokens=8),
        workload=WorkloadConfig(num_prompts=NUM_PROMPTS, num_turns=1),
        backend=backend_of("tests.support.fake_servers:TellsEveryRound", device="cpu", dtype="float32"),
        measurement=MeasurementConfig(num_warmup_requests=0, num_resamples=100),
    )
    methods = (VerificationMethod.strict, VerificationMethod.block)
    return plan(folder, *(replace(cell, verification=Verification(method), **changes) for method in methods))


def run(folder, resume=None, told=None, plan_for=plan_of, **changes):
    """Run a plan; returns what was told and the records by id."""
    told, finished = told or Told(), []
    run_cells(replace(plan_for(folder, **changes), resume=resume or Resume()), folder, told, finished)
    return told, {name: read_cell(folder / "cells" / f"{name}.json.gz") for name in finished}


def differences(undisturbed: Path, folder: Path) -> list[str]:
    """In what the cells, tokens and tables of two runs differ, but for times."""
    runs = []
    for path in (undisturbed, folder):
        listed = json.loads((path / "run.json").read_text())["cells"]
        runs.append([read_cell(path / "cells" / f"{cell_id}.json.gz") for cell_id in listed])
    first, second = runs
    if [record.cell_id for record in first] != [record.cell_id for record in second]:
        return [f"expected the cells {[item.cell_id for item in first]}, found {[item.cell_id for item in second]}"]
    tokens = same_tokens(first, second)
    if not tokens.is_same:
        return tokens.lines
    if [len(record.requests) for record in first] != [len(record.requests) for record in second]:
        return ["expected as many requests"]
    tables = [load_results(path)[COLUMNS] for path in (undisturbed, folder)]
    try:
        # sums of other orders, and float32 logits of other batches, are the same but for rounding
        assert_frame_equal(*tables, rtol=1e-5)
    except AssertionError as error:
        return [str(error)]
    return []
