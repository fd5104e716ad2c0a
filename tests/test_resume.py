"""A run that is killed and started again: the same cells, tokens and tables, whatever is left on disk."""

from dataclasses import replace

import pytest

from harness.backends.local import local
from harness.compose.run_plan import Resume
from harness.metrics import load_results
from harness.metrics.cell import read_results
from harness.metrics.comparison import comparisons_frame
from harness.metrics.definitions import METRICS
from harness.records import fault_points
from harness.records.acceptance_terms import check_terms_of, read_terms
from harness.records.files import read_cell
from harness.records.same_tokens import same_tokens
from harness.settings.cell import (
    BackendConfig,
    CellConfig,
    DecodingConfig,
    DrafterConfig,
    DrafterKind,
    MeasurementConfig,
    VerificationConfig,
    WorkloadConfig,
)
from harness.sweep.run_cells import run_cells
from kernels.contract import VerificationMethod
from tests.test_sweep import Silent, plan
from tests.test_sweep import cell as zoo_cell

NUM_PROMPTS = 10


class Killed(BaseException):
    """Stands for SIGKILL: nothing that the program does may depend on it."""


class Told(Silent):
    """Remembers what the user was told, and counts requests that were run."""

    def __init__(self):
        super().__init__()
        self.notes = []

    def note(self, text):
        self.notes.append(text)


def plan_of(folder, **changes):
    """A baseline and two methods on a scripted server."""
    cell = CellConfig(
        drafter=DrafterConfig(DrafterKind.eagle3),
        decoding=DecodingConfig(temperature=1.0, max_new_tokens=8),
        workload=WorkloadConfig(num_prompts=NUM_PROMPTS, num_turns=1),
        backend=BackendConfig(kind="tests.fake_servers:TellsEveryRound", device="cpu", dtype="float32", graphs=False),
        measurement=MeasurementConfig(num_warmup_requests=0, num_resamples=100),
    )
    methods = (VerificationMethod.strict, VerificationMethod.block)
    return plan(folder, *(replace(cell, verification=VerificationConfig(method), **changes) for method in methods))


def run(folder, options=None, told=None, **changes):
    """Run the plan; returns what was told and the records by id."""
    told, finished = told or Told(), []
    run_cells(replace(plan_of(folder, **changes), resume=options or Resume()), folder, told, finished)
    return told, {name: read_cell(folder / "cells" / f"{name}.json.gz") for name in finished}


def kill_at(monkeypatch, place, times=1):
    """Kill the process when it comes to a place for the n-th time."""
    left = [times]

    def count(reached):
        left[0] -= reached == place
        if not left[0]:
            raise Killed

    monkeypatch.setattr(fault_points, "on_reached", count)


def killed(folder, monkeypatch, place, times=1):
    """Run the plan and kill it on the way; returns what was told."""
    told = Told()
    kill_at(monkeypatch, place, times)
    with pytest.raises(Killed):
        run(folder, told=told)
    monkeypatch.setattr(fault_points, "on_reached", None)
    return told


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    return folder, run(folder)[1]


def check_same(folder, records, undisturbed):
    """The same cells, tokens and tables as the undisturbed run, but for times, which belong to sessions."""
    other, expected = undisturbed
    assert sorted(records) == sorted(expected)
    for name, record in records.items():
        tokens, again = (
            {item.key: item.output_token_ids for item in each.requests} for each in (expected[name], record)
        )
        assert tokens == again
    columns = ["cell_id", "verification", "num_requests", "num_output_tokens", "num_rounds", "num_accepted_tokens"]
    columns += [name for name, metric in METRICS.items() if metric.of_tokens]
    columns += [f"{name}_{end}" for name, metric in METRICS.items() if metric.of_tokens for end in ("low", "high")]
    first, second = (load_results(path)[columns] for path in (other, folder))
    assert first.equals(second)


PLACES = [
    ("half of a frame is written", 1),
    ("half of a frame is written", 9),
    ("a frame is written", 4),
    ("a frame is on disk", 7),
    ("a request has ended", 1),
    ("a request has ended", 14),
    ("a request has ended", 28),
    ("a turn is played", 4),
    ("the record is written", 1),
    ("the checkpoint is closed", 2),
    ("the manifest is written", 2),
]


@pytest.mark.parametrize(("place", "times"), PLACES, ids=[f"{place}, {times}" for place, times in PLACES])
def test_a_killed_run_goes_on_to_the_same_cells_tokens_and_tables(place, times, tmp_path, undisturbed, monkeypatch):
    """Would catch a part that is lost, counted twice, or read although it was not written whole."""
    before = killed(tmp_path, monkeypatch, place, times)
    told, records = run(tmp_path)
    check_same(tmp_path, records, undisturbed)
    num_lost = before.num_requests + told.num_requests - sum(len(item.requests) for item in records.values())
    assert 0 <= num_lost <= 2, "more than was under way since requests were last kept"


def test_speedups_pair_what_one_session_has_measured(tmp_path, undisturbed, monkeypatch):
    """Would catch times of two sessions that are compared, and a cell of two sessions that looks like any other."""
    killed(tmp_path, monkeypatch, "a turn is played", 4)
    run(tmp_path)
    before, after = (load_results(path).set_index("verification") for path in (undisturbed[0], tmp_path))
    # the last block of the baseline and of strict ran in the second session, that of block in the first
    assert after["labels"].to_dict() == {"": "2 sessions", "strict": "2 sessions", "block": ""}
    assert before["labels"].eq("").all()
    assert after.loc["strict", "speedup"] == pytest.approx(before.loc["strict", "speedup"])
    assert after.loc["strict", "speedup"] != after.loc["block", "speedup"]
    pairs = comparisons_frame(read_results(tmp_path).cells).set_index("metric")
    assert pairs.loc["output_tokens_per_s"].notna().all(axis=None)
    cells = read_results(tmp_path).cells
    first_block = [item.prompt_id for item in cells[0].record.requests[: NUM_PROMPTS // 2]]
    baseline, _, block = (cell.estimates.sums.take(first_block).sums for cell in cells)
    speeds = [sums["num_output_tokens"].sum() / sums["time_s"].sum() for sums in (baseline, block)]
    assert after.loc["block", "speedup"] == pytest.approx(speeds[1] / speeds[0])


def test_nothing_is_run_twice(tmp_path, undisturbed, monkeypatch):
    """Would catch a checkpoint that is written and never used: killed after every request, a run never ends."""
    for _ in range(200):
        kill_at(monkeypatch, "a frame is on disk", 2)
        try:
            _, records = run(tmp_path)
            break
        except Killed:
            pass
    check_same(tmp_path, records, undisturbed)
    assert run(tmp_path)[0].num_requests == 0


def test_the_engine_hands_over_conversations_that_have_ended(tmp_path, monkeypatch):
    """Would catch a turn that is kept without the rest of its conversation, and tokens that depend on the company."""
    monkeypatch.setattr(local, "KEEP_EVERY_S", 0.0)
    two_turns = replace(
        zoo_cell(VerificationMethod.block),
        workload=WorkloadConfig(num_prompts=4, num_turns=2),
        backend=BackendConfig(device="cpu", dtype="float32", max_concurrency=2),
        measurement=MeasurementConfig(num_warmup_requests=0, num_blocks=1, round_terms=True),
    )
    records = []
    for name, stops in (("once", ()), ("killed", (3, 2, 6))):
        for stop in stops:
            with pytest.raises(KeyboardInterrupt):
                run_cells(plan(tmp_path / name, two_turns), tmp_path / name, Silent(stop_after=stop), [])
        run_cells(plan(tmp_path / name, two_turns), tmp_path / name, Silent(), [])
        records.append({path.name: path for path in (tmp_path / name / "cells").iterdir()})
    once, again = records
    assert once.keys() == again.keys()
    for name in once:
        if name.endswith(".terms.npz"):
            check_terms_of(read_terms(again[name]), read_cell(again[name.replace(".terms.npz", ".json.gz")]))
            continue
        first, second = read_cell(once[name]), read_cell(again[name])
        assert same_tokens([first], [second]).is_same and len(first.requests) == 8
