"""What the local engine keeps of a block under way: what has ended, once, and no longer in memory."""

import gc
from dataclasses import replace

import pytest

from harness.backends.local import local
from harness.config.backend import Local
from harness.config.cell import DecodingConfig, MeasurementConfig, WorkloadConfig
from harness.engine.sequence import Sequence
from harness.records import fault_points
from harness.records.acceptance_terms import check_terms_of, read_terms
from harness.records.checkpoint import read_checkpoint
from harness.records.files import read_cell
from harness.records.parts import Part
from harness.records.request import RequestRecord
from harness.records.same_tokens import same_tokens
from harness.runner.run_cells import run_cells
from kernels.contract import VerificationMethod
from tests.runner.test_sweep import Silent, plan
from tests.runner.test_sweep import cell as zoo_cell


def test_the_engine_hands_over_conversations_that_have_ended(tmp_path, monkeypatch):
    """Would catch a turn that is kept without the rest of its conversation, and tokens that depend on the company."""
    monkeypatch.setattr(local, "KEEP_EVERY_S", 0.0)
    two_turns = replace(
        zoo_cell(VerificationMethod.block),
        workload=WorkloadConfig(num_prompts=4, num_turns=2),
        backend=Local(device="cpu", dtype="float32", max_concurrency=2),
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


def alive(*kinds):
    """Objects of some classes that are in memory."""
    return sum(type(item) in kinds for item in gc.get_objects())


def test_what_is_on_disk_is_not_in_memory(tmp_path, monkeypatch):
    """Would catch a long run that fills memory: finished requests that the sweep, the backend or the engine holds."""
    monkeypatch.setattr(local, "KEEP_EVERY_S", 0.0)
    one_by_one = replace(
        zoo_cell(VerificationMethod.block),
        decoding=DecodingConfig(temperature=1.0, max_new_tokens=4),
        workload=WorkloadConfig(num_prompts=8, num_turns=1),
        backend=Local(device="cpu", dtype="float32", max_concurrency=1),
        measurement=MeasurementConfig(baseline=False, num_warmup_requests=0, num_blocks=2),
    )
    before, found, finished = alive(RequestRecord, Sequence), [], []
    monkeypatch.setattr(
        fault_points,
        "on_reached",
        lambda place: place == "a frame is on disk" and found.append(alive(RequestRecord, Sequence) - before),
    )
    run_cells(replace(plan(tmp_path, one_by_one), cells=(one_by_one,)), tmp_path, Silent(), finished)
    # a request and its sequence while they are written; one request more while the next one runs
    assert len(found) >= 8 and max(found) <= 3
    record = read_cell(tmp_path / "cells" / f"{finished[0]}.json.gz")
    assert len(record.requests) == 8 and [block.num_requests for block in record.blocks] == [4, 4]
    assert record.wall_s > sum(each.share_s for item in record.requests for each in item.rounds) * 0.9


def test_a_run_can_end_after_any_round_and_keeps_what_has_finished(tmp_path):
    """Would catch a request that must finish first, and one that is lost although it had finished."""

    class Ends(Silent):
        def round_ended(self):
            if self.num_requests == 1:
                self.left -= 1
                if not self.left:
                    raise KeyboardInterrupt

        left = 3

    one_by_one = replace(
        zoo_cell(VerificationMethod.block),
        decoding=DecodingConfig(temperature=1.0, max_new_tokens=16, ignore_eos=True),
        workload=WorkloadConfig(num_prompts=3, num_turns=1),
        backend=Local(device="cpu", dtype="float32", max_concurrency=1),
        measurement=MeasurementConfig(baseline=False, num_warmup_requests=0, num_blocks=1),
    )
    run_plan, ends, goes_on, finished = replace(plan(tmp_path, one_by_one), cells=(one_by_one,)), Ends(), Silent(), []
    with pytest.raises(KeyboardInterrupt):
        run_cells(run_plan, tmp_path, ends, [])
    run_cells(run_plan, tmp_path, goes_on, finished)
    assert (ends.num_requests, goes_on.num_requests) == (1, 2)
    assert len(read_cell(tmp_path / "cells" / f"{finished[0]}.json.gz").requests) == 3


def test_an_interruption_while_requests_are_kept_keeps_them_once(tmp_path, monkeypatch):
    """Would catch requests that are handed over again by the interruption, so that the cell never comes to an end."""
    monkeypatch.setattr(local, "KEEP_EVERY_S", 0.0)
    small = replace(
        zoo_cell(VerificationMethod.block),
        workload=WorkloadConfig(num_prompts=2, num_turns=1),
        measurement=MeasurementConfig(baseline=False, num_warmup_requests=0, num_blocks=1),
    )
    run_plan = replace(plan(tmp_path, small), cells=(small,))

    def interrupt(place):
        if place == "a frame is on disk":
            monkeypatch.setattr(fault_points, "on_reached", None)
            raise KeyboardInterrupt

    monkeypatch.setattr(fault_points, "on_reached", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_cells(run_plan, tmp_path, Silent(), [])
    finished = []
    run_cells(run_plan, tmp_path, Silent(), finished)
    record = read_cell(tmp_path / "cells" / f"{finished[0]}.json.gz")
    assert not record.failures and len(record.requests) == 2


def test_time_between_arrivals_counts_where_requests_are_kept(tmp_path, monkeypatch):
    """Would catch a throughput that a run which was stopped has for the pauses that it leaves out."""
    monkeypatch.setattr(local, "KEEP_EVERY_S", 0.0)
    slow = replace(
        zoo_cell(VerificationMethod.block),
        decoding=DecodingConfig(temperature=1.0, max_new_tokens=2),
        workload=WorkloadConfig(num_prompts=3, num_turns=1, request_rate=4.0),
        measurement=MeasurementConfig(baseline=False, num_warmup_requests=0, num_blocks=1),
    )
    with pytest.raises(KeyboardInterrupt):
        run_cells(replace(plan(tmp_path, slow), cells=(slow,)), tmp_path, Silent(stop_after=3), [])
    frames, _, _ = read_checkpoint(next((tmp_path / "checkpoints").iterdir()))
    parts = [Part.from_json(frame["part"]) for frame in frames]
    assert sum(len(part.requests) for part in parts) == 3
    assert sum(part.block.wall_s for part in parts) == pytest.approx(parts[-1].clock_s, rel=0.05)
