"""Finished runs whose weights lie in no plain folder are answered without a worker too, and only where that is sure."""

from dataclasses import replace
from shutil import copytree
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch

from harness.config.drafter import DrafterKind, drafter_of
from harness.config.models import TargetConfig, Weights
from harness.models.zoo import zoo_path
from harness.runner import weights_here
from harness.runner.launchers.local_run import LocalLauncher
from harness.runner.run_cells import run_cells
from harness.runner.supervisor import Supervisor
from kernels.contract import VerificationMethod
from tests.runner.test_sweep import Silent, cell, plan
from tests.support.scripted_server import ScriptedServer
from tests.support.server_cells import DEPTH, cell_on

COMMIT, NAME = "0123456789abcdef0123456789abcdef01234567", "some-lab/small-model"
STRICT = cell(VerificationMethod.strict)


class NeedsAWorkerError(Exception):
    """A worker was to be started."""


@pytest.fixture
def is_answered(tmp_path, monkeypatch):
    """Runs cells in this process; returns whether a supervisor then lists them without a worker."""

    def start(self, place):
        raise NeedsAWorkerError

    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
    monkeypatch.setattr(LocalLauncher, "start", start)

    def answered(cells, *, has_run=False):
        if not has_run:
            run_cells(plan(tmp_path / "run", *cells), tmp_path / "run", Silent(), [])
        finished = []
        try:
            Supervisor(plan(tmp_path / "run", *cells), Silent(), finished).run()
        except NeedsAWorkerError:
            return False
        return len(finished) > 0

    return answered


@pytest.fixture
def snapshot(tmp_path, monkeypatch):
    """The folder of a model in a Hub cache, and what the Hub says its main branch is."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    repository = tmp_path / "hub" / f"models--{NAME.replace('/', '--')}"
    copytree(zoo_path("target"), repository / "snapshots" / COMMIT)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    hub = SimpleNamespace(commit=COMMIT, num_asked=0)

    def model_info(self, name, **how):
        hub.num_asked += 1
        if hub.commit is None:
            raise ConnectionError("no network")
        return SimpleNamespace(sha=hub.commit)

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    return hub


def test_random_weights_are_those_of_the_code_and_of_what_they_are_drawn_after(is_answered, monkeypatch):
    """Would catch a worker that draws gigabytes to find nothing to do, and other sizes under the same name."""
    target = TargetConfig(weights=Weights.random)
    drafter = drafter_of(DrafterKind.eagle, weights=Weights.random)
    cells = [replace(STRICT, target=target, drafter=drafter)]
    assert is_answered(cells)
    assert not is_answered([replace(cells[0], drafter=drafter_of(DrafterKind.eagle))], has_run=True)
    monkeypatch.setattr(weights_here, "fingerprint", lambda *given: "of other sizes")
    assert not is_answered(cells, has_run=True)


@pytest.mark.parametrize(("commit", "revision", "expected"), [(COMMIT, None, True), ("another", None, False)])
def test_a_hub_id_is_the_snapshot_that_the_hub_names_today(commit, revision, expected, snapshot):
    """Would catch last month's weights that answer for those of today, and a Hub that is asked what cannot change."""
    snapshot.commit = commit
    found = weights_here.hub_snapshot(NAME, revision)
    assert (found is not None and found.name == COMMIT) == expected and snapshot.num_asked == 1
    assert weights_here.hub_snapshot(NAME, COMMIT) is not None and snapshot.num_asked == 1
    snapshot.commit = None
    assert weights_here.hub_snapshot(NAME, None) is None
    assert weights_here.hub_snapshot("some-lab/not-here", COMMIT) is None


def test_cells_of_a_hub_id_are_answered_with_one_question(snapshot, is_answered, monkeypatch):
    """Would catch a question for every cell, and a key that no worker would find."""
    folder = weights_here.hub_snapshot(NAME, COMMIT)
    # a worker would ask the Hub for its files
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *given, **how: str(folder))
    cells = [replace(STRICT, target=TargetConfig(path=NAME), drafter=drafter_of(DrafterKind.ngram))]
    assert is_answered(cells) and snapshot.num_asked == 1
    snapshot.commit = "another"
    assert not is_answered(cells, has_run=True)


def test_finished_cells_of_a_server_are_answered_without_it(is_answered):
    with ScriptedServer(depth=DEPTH) as server:
        cells = [cell_on(server, num_requests=4)]
        assert is_answered(cells)
        num_asked = len(server.bodies)
    assert is_answered(cells, has_run=True) and len(server.bodies) == num_asked
