"""A run that is killed and started again: the same cells, tokens and tables."""

import json
import re
from dataclasses import replace
from io import StringIO
from itertools import count
from shutil import copytree

import pytest

from harness.analysis import load_results
from harness.analysis.comparison import comparisons_frame
from harness.analysis.results import read_results
from harness.backends.backend import RefusedArm
from harness.config.cell import MeasurementConfig
from harness.config.imported import ImportPath
from harness.records.provenance import provenance
from harness.report.cell_names import SESSIONS
from harness.report.missing_values import OTHER_SESSIONS, missing_value_notes
from harness.report.tables.summary import summary_table
from harness.report.warnings import warnings
from harness.runner import arm
from harness.runner.plan.run_plan import Resume, Workers
from harness.runner.progress import Progress
from harness.runner.run_cells import run_cells
from tests.support.fake_servers import TellsEveryRound
from tests.support.killed_runs import Killed, kill_at, killed
from tests.support.resumed_runs import NUM_PROMPTS, Told, differences, plan_of, run


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    run(folder)
    return folder


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
    assert not differences(undisturbed, tmp_path)
    num_lost = before.num_requests + told.num_requests - sum(len(item.requests) for item in records.values())
    assert 0 <= num_lost <= 2, "more than was under way since requests were last kept"


def test_progress_counts_the_same_requests_before_and_after_an_interruption(tmp_path, monkeypatch):
    """Would catch a total that leaves out what was kept, and a cell that is counted among those of its group."""

    class Lines(Progress):
        """Has a line for everything that happens."""

        def __init__(self):
            super().__init__(StringIO(), count(step=20.0).__next__)
            self.lines = []

        def note(self, text):
            self.lines.append(text)

    kept = killed(tmp_path, monkeypatch, "a turn is played", 4).num_requests
    told, _ = run(tmp_path, told=Lines())
    total = 3 * NUM_PROMPTS
    counts = [re.match(r"(\d+)/(\d+) requests", line) for line in told.lines]
    assert {int(each[2]) for each in counts if each} == {total}
    done = [int(each[1]) for each in counts if each]
    assert done == sorted(done) and done[-1] == total and done[0] >= kept
    assert any(line.startswith("of cells 1 to 3 of 3, ") for line in told.lines)
    assert told.lines[-1].startswith(f"{total}/{total} requests ({kept} before), ")


def test_speedups_pair_what_one_session_has_measured(tmp_path, undisturbed, monkeypatch):
    """Would catch times of two sessions that are compared, and a cell of two sessions that looks like any other."""
    killed(tmp_path, monkeypatch, "a turn is played", 4)
    run(tmp_path)
    before, after = (load_results(path).set_index("verification") for path in (undisturbed, tmp_path))
    # the last block of the baseline and of strict ran in the second session, that of block in the first
    assert after["labels"].to_dict() == {"": "2 sessions", "strict": "2 sessions", "block": ""}
    assert before["labels"].eq("").all()
    assert after.loc["strict", "speedup"] == pytest.approx(before.loc["strict", "speedup"])
    assert after.loc["strict", "speedup"] != after.loc["block", "speedup"]
    pairs = comparisons_frame(read_results(tmp_path).cells).set_index("metric")
    assert pairs.loc["output_tokens_per_s", ["value", "low", "high"]].notna().all(axis=None)
    cells = read_results(tmp_path).cells
    first_block = [item.prompt_id for item in cells[0].record.requests[: NUM_PROMPTS // 2]]
    baseline, _, block = (cell.estimates.sums.take(first_block).sums for cell in cells)
    speeds = [sums["num_output_tokens"].sum() / sums["time_s"].sum() for sums in (baseline, block)]
    assert after.loc["block", "speedup"] == pytest.approx(speeds[1] / speeds[0])


def test_a_cell_that_was_added_later_says_why_it_has_no_speedup(tmp_path):
    """Would catch an empty speedup without a reason, and one over a baseline of another day."""
    run(tmp_path)
    cells = plan_of(tmp_path).cells
    added = replace(cells[1], drafting=replace(cells[1].drafting, num_speculative_tokens=2))
    assert not any("other sessions" in line for line in warnings(read_results(tmp_path)))
    told = Told()
    run_cells(replace(plan_of(tmp_path), cells=(*cells, added)), tmp_path, told, [])
    assert [note for note in told.notes if note.startswith("no speedup of eagle3 K=2 T=1 strict: the baseline was")]
    results = read_results(tmp_path)
    assert [cell.speedup.value > 0 for cell in results.cells] == [True, True, True, False]
    assert any(line.startswith("1 cells") and "other sessions" in line for line in warnings(results))
    assert [line for line in missing_value_notes(results.cells, ["speedup"]) if OTHER_SESSIONS in line]


@pytest.mark.parametrize(
    ("num_groups", "cores", "words"),
    [(2, 3, "with 2 threads each shared 3 cores"), (2, 4, "at the same time on a host of 4 cores"), (1, 3, "")],
)
def test_workers_that_share_the_cores_of_a_host_are_told_of(num_groups, cores, words, tmp_path, monkeypatch):
    """Would catch a speedup of cells that disturbed each other, of which the report and its tables say nothing."""
    host = {"torch_threads": 2, "cpu": {"model": "a CPU", "num_cores": cores}}
    monkeypatch.setattr(arm, "provenance", lambda **known: {**provenance(**known), **host})
    cells = plan_of(tmp_path).cells
    others = [replace(cell, decoding=replace(cell.decoding, temperature=0.5)) for cell in cells]
    cells = (*cells, *others)[: len(cells) * num_groups]
    run_cells(replace(plan_of(tmp_path), cells=cells, workers=Workers(("0", "1"))), tmp_path, Told(), [])
    results = read_results(tmp_path)
    for lines in (warnings(results), summary_table(results.cells).notes):
        found = [line for line in lines if "2 workers of this run" in line]
        assert [words in line for line in found] == ([True] if words else [])


def test_nothing_is_run_twice(tmp_path, undisturbed, monkeypatch):
    """Would catch a checkpoint that is written and never used: killed after every request, a run never ends."""
    for _ in range(200):
        kill_at(monkeypatch, "a frame is on disk", 2)
        try:
            run(tmp_path)
            break
        except Killed:
            pass
    assert not differences(undisturbed, tmp_path)
    assert run(tmp_path)[0].num_requests == 0


def test_what_was_measured_with_something_else_is_started_anew_or_marked(tmp_path, undisturbed, monkeypatch):
    """Would catch parts of two commits in one cell that nothing tells from a cell of one."""
    anew, mixed = tmp_path / "anew", tmp_path / "mixed"
    killed(anew, monkeypatch, "a turn is played", 5)
    copytree(anew, mixed)

    def elsewhere(**facts):
        found = provenance(**facts)
        return found | {"git": {**(found["git"] or {}), "commit": "another"}}

    monkeypatch.setattr(arm, "provenance", elsewhere)
    told, _ = run(anew)
    (line,) = (note for note in told.notes if "measured with others" in note)
    assert "all 3 cells (commit: found " in line and ", expected another)" in line and "--accept-drift" in line
    assert ".parts" not in line and "None" not in line
    assert told.num_requests == 3 * NUM_PROMPTS and load_results(anew)["labels"].eq("").all()
    told, _ = run(mixed, Resume(accepts_drift=True))
    assert told.num_requests == NUM_PROMPTS // 2
    assert load_results(mixed)["labels"].to_list() == ["2 sessions, not the same commit", "", ""]
    noted = [SESSIONS in summary_table(read_results(folder).cells).notes for folder in (anew, mixed)]
    assert noted == [False, True]
    alike, unlike = (warnings(read_results(folder)) for folder in (anew, mixed))
    assert not any("measured with the same" in line for line in alike)
    assert any("its cells were not measured with the same commit; --fresh" in line for line in unlike)
    assert [item.provenance for item in read_results(mixed).cells[0].record.blocks] == [0, 1]
    assert not differences(undisturbed, anew) and not differences(undisturbed, mixed)


def test_drift_that_was_accepted_need_not_be_accepted_again(tmp_path, undisturbed, monkeypatch):
    """Would catch a run that throws away what it went on with, because the option was not given once more."""
    killed(tmp_path, monkeypatch, "a request has ended", 3)
    monkeypatch.setattr(arm, "provenance", lambda **facts: provenance(**facts) | {"python": "another"})
    killed(tmp_path, monkeypatch, "a request has ended", 3, resume=Resume(accepts_drift=True))
    told, _ = run(tmp_path)
    assert not any("anew" in note for note in told.notes)
    assert "not the same python" in load_results(tmp_path)["labels"][0] and not differences(undisturbed, tmp_path)


def test_a_changed_setting_makes_new_cells_and_leaves_the_old_ones(tmp_path):
    _, before = run(tmp_path)
    told, after = run(tmp_path, seed=7)
    assert told.num_requests == 3 * NUM_PROMPTS and not before.keys() & after.keys()
    assert run(tmp_path)[0].num_requests == 0
    assert json.loads((tmp_path / "run.json").read_text())["cells"] == list(before)[::-1]


def test_settings_that_determine_nothing_are_brought_up_to_date(tmp_path):
    """Would catch intervals of an earlier confidence under the present one."""
    _, before = run(tmp_path)
    told, after = run(tmp_path, measurement=MeasurementConfig(num_warmup_requests=0, num_resamples=200))
    assert told.num_requests == 0 and before.keys() == after.keys()
    assert {record.config["measurement"]["num_resamples"] for record in after.values()} == {200}
    assert run(tmp_path)[0].num_requests == 0


@pytest.mark.parametrize("is_finished", [False, True], ids=["a block", "a finished cell"])
def test_failed_requests_are_run_again_if_asked_for(is_finished, tmp_path, monkeypatch):
    """Would catch failed requests that no option runs again, and answers that are measured twice."""
    backend = replace(
        plan_of(tmp_path).cells[0].backend, builder=ImportPath("tests.support.failing_servers:LosesRequestsUntilMended")
    )
    if is_finished:
        _, records = run(tmp_path, backend=backend)
        assert [(len(record.requests), len(record.failures)) for record in records.values()] == [(8, 2)] * 3
    else:
        killed(tmp_path, monkeypatch, "a turn is played", 4, backend=backend)
    monkeypatch.setenv("SERVER_IS_MENDED", "1")
    if is_finished:
        assert run(tmp_path, backend=backend)[0].num_requests == 0
    else:
        # asked for once, it holds for good
        killed(tmp_path, monkeypatch, "a turn is played", 1, backend=backend, resume=Resume(retries_failed=True))
    told, records = run(tmp_path, Resume(retries_failed=is_finished), backend=backend)
    assert [(len(record.requests), record.failures) for record in records.values()] == [(NUM_PROMPTS, ())] * 3
    assert told.num_requests == 3 * NUM_PROMPTS - (0 if is_finished else NUM_PROMPTS // 2)
    assert run(tmp_path, Resume(retries_failed=True), backend=backend)[0].num_requests == 0


def test_fresh_starts_anew(tmp_path, monkeypatch):
    killed(tmp_path, monkeypatch, "a turn is played", 5)
    assert run(tmp_path, Resume(is_fresh=True))[0].num_requests == 3 * NUM_PROMPTS
    assert run(tmp_path, Resume(is_fresh=True))[0].num_requests == 3 * NUM_PROMPTS


def test_a_second_interruption_keeps_the_list_of_the_first(tmp_path, monkeypatch):
    """Would catch a report that lacks cells which are there."""
    run(tmp_path)
    listed = json.loads((tmp_path / "run.json").read_text())["cells"]
    killed(tmp_path, monkeypatch, "the manifest is written", 1)
    assert json.loads((tmp_path / "run.json").read_text())["cells"] == listed


def test_what_a_refused_call_has_kept_does_not_come_back(tmp_path, monkeypatch):
    """Would catch requests of a server that was refused for what it does, in the cell that is measured once it does
    what it should; what the block before showed stays."""
    generate, num_calls = TellsEveryRound.generate, count(1)

    def refused(self, conversations, on_request=None, start_s=0.0, keep=None):
        found = generate(self, conversations, on_request, start_s, keep)
        if not self.cell.is_baseline or on_request is None or next(num_calls) < 2:
            return found
        raise RefusedArm("expected a baseline without drafts, found drafts")

    blocks = MeasurementConfig(num_warmup_requests=0, num_blocks=2, num_resamples=100)
    with monkeypatch.context() as patch:
        patch.setattr(TellsEveryRound, "generate", refused)
        _, records = run(tmp_path, measurement=blocks)
    assert [record.has_failed for record in records.values()].count(True) == 1
    told, records = run(tmp_path, Resume(retries_failed=True), measurement=blocks)
    assert told.num_requests == NUM_PROMPTS // 2
    (baseline,) = [record for record in records.values() if record.config["drafter"]["kind"] == "none"]
    assert len(baseline.requests) == NUM_PROMPTS and not baseline.failures
