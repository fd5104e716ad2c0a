"""Runs on a server that go on: what was done is found again, and nothing of two versions is taken for one."""

from dataclasses import replace

import pytest

from harness.analysis import load_results
from harness.analysis.results import read_results
from harness.records import fault_points
from harness.report.warnings import warnings
from harness.runner.plan.run_plan import Resume, RunPlan
from harness.runner.run_cells import run_cells
from tests.support.own_process import errors_of
from tests.support.resumed_runs import Told
from tests.support.scripted_server import ScriptedServer
from tests.support.server_cells import DEPTH, cell_on

NUM_REQUESTS = 9
BLOCK = 3


@pytest.fixture
def server():
    """One of version 0.33.0."""
    with ScriptedServer(depth=DEPTH) as running:
        yield running


def run(folder, *cells, **resume):
    """Run cells; returns what was told."""
    told = Told()
    plan = RunPlan("test", "a test", cells, (), folder, "command", resume=Resume(**resume))
    run_cells(plan, folder, told, [])
    return told


def killed_after(num_turns, folder, monkeypatch, *cells):
    """Run cells until so many turns are played."""
    left = [num_turns]

    def count(place):
        left[0] -= place == "a turn is played"
        if not left[0]:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fault_points, "on_reached", count)
        with pytest.raises(KeyboardInterrupt):
            run(folder, *cells)


@pytest.mark.parametrize(
    ("version", "resume", "num_requests", "label"),
    [
        ("0.33.0", {}, BLOCK, "2 sessions"),
        ("0.34.0", {}, NUM_REQUESTS, ""),
        ("0.34.0", {"accepts_drift": True}, BLOCK, "2 sessions, not the same vllm"),
    ],
    ids=["the same", "anew", "accepted"],
)
def test_a_cell_is_not_put_together_from_two_versions(
    version, resume, num_requests, label, server, tmp_path, monkeypatch
):
    """Would catch tokens and times of two releases of an engine in one cell, and blocks that are lost or told twice
    where it starts anew."""
    cell = cell_on(server, num_requests=NUM_REQUESTS, num_blocks=3)
    killed_after(2, tmp_path, monkeypatch, cell)
    server.version = version
    told = run(tmp_path, cell, **resume)
    assert f"asking the server at {server.url}" in told.notes and not any("loading" in line for line in told.notes)
    # what was kept counts as left again
    assert told.num_requests == num_requests
    assert (load_results(tmp_path)["labels"][0], len(read_results(tmp_path).cells[0].record.requests)) == (
        label,
        NUM_REQUESTS,
    )
    lines = [line for line in told.notes if "vllm: found 0.33.0, expected 0.34.0" in line]
    assert len(lines) == (version != "0.33.0") and all(("--accept-drift" in line) == (not resume) for line in lines)
    assert run(tmp_path, cell).num_requests == 0


def test_cells_of_two_versions_are_told_of(server, tmp_path):
    """Would catch a comparison of cells between which the server was upgraded, and a note on two engines that were to
    be compared."""
    cell = cell_on(server, num_requests=4)
    other = replace(cell, decoding=replace(cell.decoding, temperature=0.5))
    run(tmp_path, cell)
    server.version = "0.34.0"
    run(tmp_path, cell, other)
    words = "its cells were not measured with the same vllm"
    assert any(words in line for line in warnings(read_results(tmp_path)))
    with ScriptedServer(depth=DEPTH, version="0.35.0") as second:
        run(tmp_path, other, cell_on(second, num_requests=4))
    assert not any(words in line for line in warnings(read_results(tmp_path)))


def test_what_a_worker_did_is_found_by_the_next(tmp_path):
    """Would catch cells that are measured anew at every start: a worker on a server alone has not imported torch when
    it looks for them, and has when it measures them, so that threads and GPU would be known only then."""
    with ScriptedServer("plain", depth=0) as server:
        given = ["backend=server", "server=plain", f"server.url={server.url}", "drafter=none", "workload.num_prompts=4"]
        given += ["workload.num_turns=1", "decoding.max_new_tokens=8", "measurement.num_resamples=100"]
        given += ["measurement.num_warmup_requests=0", f"output.folder={tmp_path}"]
        # with the option a worker looks
        told = [errors_of("-m", "experiments", "run", *given, *more) for more in ((), ("--retry-failed",))]
        assert len(server.bodies) == 4
    assert not any("anew" in line for line in told)
