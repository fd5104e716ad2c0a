"""The sweep: groups, interleaving, what is written when, and what an interruption leaves."""

import io
import json
from dataclasses import replace

import pytest

from harness.config.backend import Local
from harness.config.cell import CellConfig
from harness.config.drafter import DrafterKind, drafter_of
from harness.config.sections import DecodingConfig, MeasurementConfig
from harness.config.workload import WorkloadConfig
from harness.records.files import read_cell
from harness.runner.groups import comparable_groups
from harness.runner.plan.run_plan import RunPlan, with_baselines
from harness.runner.progress import Progress
from harness.runner.run_cells import interleave, run_cells
from kernels.contract import VerificationMethod
from kernels.verification import Verification


def cell(method: VerificationMethod, temperature: float = 1.0) -> CellConfig:
    return CellConfig(
        drafter=drafter_of(DrafterKind.eagle3),
        decoding=DecodingConfig(temperature=temperature, max_new_tokens=6),
        verification=Verification(method),
        workload=WorkloadConfig(num_prompts=4, num_turns=1),
        backend=Local(device="cpu", dtype="float32", max_concurrency=4),
        measurement=MeasurementConfig(num_warmup_requests=1),
    )


def plan(tmp_path, *cells: CellConfig) -> RunPlan:
    return RunPlan("test", "a test", with_baselines(cells), (), tmp_path, "command")


class Silent(Progress):
    def __init__(self, stop_after: int | None = None) -> None:
        super().__init__(io.StringIO())
        self.num_requests, self.stop_after, self.total = 0, stop_after, 0

    def start(self, num_requests_total: int) -> None:
        self.total = num_requests_total

    def advance(self, num_requests: int = 1, num_tokens: int = 0) -> None:
        self.num_requests += num_requests
        if self.num_requests == self.stop_after:
            raise KeyboardInterrupt


def test_arms_take_turns_in_alternating_order():
    turns = list(interleave(3, list("abcdefg"), 2))
    assert [turn.arm for turn in turns] == [0, 1, 2, 2, 1, 0]
    assert ["".join(turn.conversations) for turn in turns] == ["abc"] * 3 + ["defg"] * 3
    assert [turn.block for turn in turns] == [0] * 3 + [1] * 3
    assert [turn.is_last for turn in turns] == [False] * 3 + [True] * 3


def test_cells_to_be_compared_share_a_group_with_their_baseline(tmp_path):
    cells = [cell(method, t) for t in (0.0, 1.0) for method in (VerificationMethod.strict, VerificationMethod.block)]
    groups = comparable_groups(plan(tmp_path, *cells).cells)
    assert [len(group) for group in groups] == [3, 3]
    assert all(sum(item.is_baseline for item in group) == 1 for group in groups)


def test_every_cell_is_written_with_what_determined_it(tmp_path):
    progress, finished = Silent(), []
    methods = plan(tmp_path, cell(VerificationMethod.strict), cell(VerificationMethod.block))
    run_cells(methods, tmp_path, progress, finished)
    records = [read_cell(path) for path in sorted((tmp_path / "cells").iterdir())]
    assert sorted(record.cell_id for record in records) == sorted(finished)
    # in the plan's order, although the arms of the last block finish from the last to the first
    listed = json.loads((tmp_path / "run.json").read_text())["cells"]
    names = {r.cell_id: (r.config["drafter"]["kind"], r.config["verification"]["method"]) for r in records}
    assert [names[each][1] for each in listed[1:]] == ["strict", "block"] and names[listed[0]][0] == "none"
    assert listed == finished[::-1]
    assert progress.num_requests == progress.total == 12
    for record in records:
        assert record.config["dtype"] == "float32" and record.config["device"] == "cpu"
        assert record.provenance["sampling_core"] == "reference"
        assert len({item.prompt_id for item in record.requests}) == 4
        arrivals = [item.rounds[-1].arrival_s for item in record.requests]
        assert max(arrivals) <= record.wall_s


def test_running_again_gives_the_same_ids_and_tokens(tmp_path):
    outputs = []
    for name in ("once", "again"):
        finished: list[str] = []
        run_cells(plan(tmp_path / name, cell(VerificationMethod.block)), tmp_path / name, Silent(), finished)
        records = [read_cell(tmp_path / name / "cells" / f"{item}.json.gz") for item in sorted(finished)]
        outputs.append([(r.cell_id, sorted((q.prompt_id, q.output_token_ids) for q in r.requests)) for r in records])
    assert outputs[0] == outputs[1]


def test_an_interruption_keeps_finished_cells_and_older_results_until_then(tmp_path):
    (tmp_path / "run.json").write_text("older")
    both = plan(tmp_path, cell(VerificationMethod.strict))
    finished: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        run_cells(both, tmp_path, Silent(stop_after=3), finished)
    assert finished == [] and (tmp_path / "run.json").read_text() == "older"
    with pytest.raises(KeyboardInterrupt):
        run_cells(both, tmp_path, Silent(stop_after=5), finished)
    assert len(finished) == 1 and json.loads((tmp_path / "run.json").read_text())["cells"] == finished


def test_cells_of_which_nothing_fits_have_failed(tmp_path):
    tight = replace(cell(VerificationMethod.strict), backend=Local(device="cpu", max_length=12))
    run_cells(plan(tmp_path, tight), tmp_path, Silent(), [])
    records = [read_cell(path) for path in (tmp_path / "cells").iterdir()]
    assert len(records) == 2 and all("found none among 4" in item.failures[0].message for item in records)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompt_tokens_beside_rounds": 64}, r"backend.prompt_tokens_beside_rounds \(null, 64\) only"),
        ({"graphs": False}, r"backend.graphs \(null, false\) only"),
        ({"dtype": "auto"}, r"backend.dtype \(\"float32\", \"auto\"\) only"),
    ],
)
def test_cells_that_are_one_on_this_machine_are_refused_before_anything_is_played(changes, words, tmp_path):
    """Would catch records that take each other's place, and a run that calls itself incomplete for it."""
    first, progress = cell(VerificationMethod.strict), Silent()
    second = replace(first, backend=replace(first.backend, **changes))
    cells = tuple(replace(item, measurement=replace(item.measurement, baseline=False)) for item in (first, second))
    repeated = RunPlan("test", "a test", cells, (), tmp_path, "command")
    with pytest.raises(ValueError, match=words):
        run_cells(repeated, tmp_path, progress, [])
    assert progress.total == 0 and not list(tmp_path.iterdir())
