"""What earlier sessions left, told without torch: a finished run starts no worker, and a list says what is left."""

import json
from dataclasses import replace
from io import StringIO
from shutil import copytree

import pytest
import torch

from experiments import run as command
from harness.backends.local.local import LocalBackend
from harness.backends.local.model_store import ModelStore
from harness.config.backend import backend_of
from harness.config.cell import CellConfig
from harness.config.drafter import DrafterKind, drafter_of
from harness.models.zoo import zoo_path
from harness.records.runs import read_manifest
from harness.runner import earlier_cells, weights_here
from harness.runner.earlier_cells import EarlierCells
from harness.runner.launchers.local_run import LocalLauncher
from harness.runner.listing import listing
from harness.runner.plan.run_plan import Resume
from harness.runner.progress import Progress
from harness.runner.refuse_cells import refuse_repeated
from harness.runner.run_cells import run_cells
from harness.runner.supervisor import Supervisor
from kernels.contract import VerificationMethod
from tests.runner.test_sweep import Silent, cell, plan

STRICT = cell(VerificationMethod.strict)


class NeedsAWorkerError(Exception):
    """A worker was to be started."""


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """The folder of a run that has ended: a baseline and strict."""
    folder = tmp_path_factory.mktemp("ended") / "run"
    run_cells(plan(folder, STRICT), folder, Silent(), [])
    return folder


@pytest.fixture
def run_plan(ended, tmp_path, monkeypatch):
    """Its plan, in a copy of it."""
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
    copytree(ended, tmp_path, dirs_exist_ok=True)
    made = plan(tmp_path, STRICT)

    def start(self, place):
        raise NeedsAWorkerError

    monkeypatch.setattr(LocalLauncher, "start", start)
    return made


def listed(made) -> list[str]:
    """What a list says there is of each cell."""
    return [line.partition("  there is")[2] or line.rsplit("  ", 1)[-1] for line in listing(made)[0].splitlines()[1:]]


def test_a_finished_run_is_answered_from_its_records(run_plan, tmp_path, monkeypatch):
    """Would catch a run that imports torch to find that nothing is left to do, and a manifest without cells."""
    before = read_manifest(tmp_path)["cells"]
    (tmp_path / "run.json").unlink()
    finished: list[str] = []
    Supervisor(run_plan, Silent(), finished).run()
    assert finished == before == read_manifest(tmp_path)["cells"]
    assert listed(run_plan) == ["done", "done"] and "0 are left" in listing(run_plan)[1][0]


def test_finished_groups_count_as_done_among_all_requests(run_plan):
    """Would catch a run that counts the requests of the groups alone in which something is left."""
    other = [replace(each, decoding=replace(each.decoding, temperature=0.5)) for each in run_plan.cells]
    stream = StringIO()
    progress = Progress(stream)
    with pytest.raises(NeedsAWorkerError):
        Supervisor(replace(run_plan, cells=(*run_plan.cells, *other)), progress, []).run()
    progress.finish()
    assert "2 of 4 cells were finished before" in stream.getvalue()
    assert stream.getvalue().splitlines()[-1].startswith("8/16 requests (8 before), 0 tokens")


def test_an_answered_run_keeps_the_time_at_which_it_was_measured(run_plan, tmp_path):
    """Would catch a report made today of times from last month that says it was started today."""
    manifest = read_manifest(tmp_path) | {"started": "2026-01-02T03:04:05+00:00"}
    (tmp_path / "run.json").write_text(json.dumps(manifest))
    Supervisor(run_plan, Silent(), []).run()
    assert read_manifest(tmp_path)["started"] == "2026-01-02T03:04:05+00:00"


@pytest.mark.parametrize(
    "change", ["commit", "threads", "weights", "record", "cell", "fresh", "retry", "confidence", "prompts"]
)
def test_what_is_not_surely_the_same_is_left_to_a_worker(change, run_plan, tmp_path, monkeypatch):
    """Would catch cells of other code, weights or prompts that are passed off as those of this run."""
    if change == "commit":
        known = earlier_cells.provenance()
        monkeypatch.setattr(earlier_cells, "provenance", lambda: known | {"git": {"commit": "another"}})
    elif change == "threads":
        monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads() + 1))
    elif change == "weights":
        monkeypatch.setattr(weights_here, "fingerprint", lambda *given: "others")
    elif change == "record":
        path = next((tmp_path / "cells").iterdir())
        path.write_bytes(path.read_bytes() + b"x")
    elif change == "cell":
        run_plan = replace(run_plan, cells=(*run_plan.cells, cell(VerificationMethod.block)))
    elif change in ("fresh", "retry"):
        run_plan = replace(run_plan, resume=Resume(is_fresh=change == "fresh", retries_failed=change == "retry"))
    elif change == "confidence":
        measured = [replace(each, measurement=replace(each.measurement, confidence=0.9)) for each in run_plan.cells]
        run_plan = replace(run_plan, cells=tuple(measured))
    else:
        others = [replace(each, workload=replace(each.workload, num_prompts=3)) for each in run_plan.cells]
        run_plan = replace(run_plan, cells=tuple(others))
    with pytest.raises(NeedsAWorkerError):
        Supervisor(run_plan, Silent(), []).run()
    told = listed(run_plan) if change != "fresh" else []
    expected = {
        **dict.fromkeys(("commit", "threads"), "done, not the same "),
        **dict.fromkeys(("retry", "confidence"), "done"),
        **dict.fromkeys(("weights", "prompts"), "-"),
    }
    if change in expected:
        assert all(text.startswith(expected[change]) for text in told) and len(told) == 2
    elif change == "cell":
        assert told == ["done", "done", "-"] and "1 are left" in listing(run_plan)[1][0]


def test_cells_that_are_one_here_are_refused_by_a_worker(run_plan):
    """Would catch a finished run that answers for more cells than there are, and calls them all finished."""
    also = [replace(each, backend=replace(each.backend, graphs=False)) for each in run_plan.cells]
    finished: list[str] = []
    with pytest.raises(NeedsAWorkerError):
        Supervisor(replace(run_plan, cells=(*run_plan.cells, *also)), Silent(), finished).run()
    assert not finished


def test_a_list_counts_what_a_stopped_run_has_kept(tmp_path, monkeypatch):
    """Would catch an estimate for all requests where half of them are done."""
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
    made = plan(tmp_path, STRICT)
    with pytest.raises(KeyboardInterrupt):
        # in the second block of the second cell
        run_cells(made, tmp_path, Silent(stop_after=5), [])
    assert listed(made) == ["2 requests", "3 requests"]
    disk = next(line for line in listing(made)[1] if line.startswith("disk"))
    whole = next(line for line in listing(replace(made, resume=Resume(is_fresh=True)))[1] if line.startswith("disk"))
    size, of_all = (float(line.split()[2]) for line in (disk, whole))
    assert size == pytest.approx(of_all * 3 / 8, rel=0.05)


@pytest.mark.parametrize("kind", [None, DrafterKind.eagle, DrafterKind.mtp, DrafterKind.draft_model, DrafterKind.ngram])
@pytest.mark.parametrize("changes", [{}, {"dtype": "bfloat16"}, {"graphs": True}, {"device": "auto"}])
def test_cells_are_named_as_a_worker_names_them(kind, changes, tmp_path):
    """Would catch keys of which none is ever found again."""
    drafter = drafter_of("none") if kind is None else drafter_of(kind)
    settings = replace(STRICT.backend, **{"dtype": "auto", **changes})
    config: CellConfig = replace(STRICT, drafter=drafter, backend=settings)
    on_gpu = torch.cuda.is_available()
    here = earlier_cells.device_here()
    assert here is None or here.type == ("cuda" if on_gpu else "cpu")
    resolved = LocalBackend.resolved(config)
    assert resolved in list(EarlierCells(plan(tmp_path, config))._resolved(config))
    assert weights_here.weights_here(config) == LocalBackend(config, ModelStore()).weights()


def test_cells_that_only_a_worker_can_find_are_not_called_new(run_plan):
    """Would catch a list that counts cells of a backend of one's own as not begun."""
    own = replace(STRICT, backend=backend_of("tests.support.fake_servers:FakeServer", device="cpu", dtype="float32"))
    table, lines = listing(replace(run_plan, cells=(own,)))
    assert table.endswith("not known") and "1 are left; of 1 of these only a worker can tell" in lines[0]


def test_the_list_of_a_finished_run_is_a_command(run_plan, tmp_path, capsys):
    """Would catch options that the list does not heed."""
    overrides = ["drafter=eagle3", "verification=strict", "workload.num_prompts=4", "workload.num_turns=1"]
    overrides += ["decoding.max_new_tokens=6", "backend.device=cpu", "backend.dtype=float32", "decoding.temperature=1"]
    overrides += ["backend.max_concurrency=4", "measurement.num_warmup_requests=1", f"output.folder={tmp_path}"]
    assert command.main(["--list", *overrides]) == 0
    captured = capsys.readouterr()
    assert captured.out.count("done") == 2 and "of 2 cells 2 are done, 0 have failed, 0 are left" in captured.err
    assert command.main(["--list", "--fresh", *overrides]) == 0
    assert "there is" not in capsys.readouterr().out


def test_two_folders_with_the_same_weights_are_refused(tmp_path):
    """Would catch two cells that write one checkpoint, and an error that blames another process."""
    copytree(zoo_path("eagle3"), tmp_path / "copy")
    heads = [drafter_of(DrafterKind.eagle3, path=str(path)) for path in (zoo_path("eagle3"), tmp_path / "copy")]
    with pytest.raises(ValueError, match=r"drafter\.path .*copy.* does not tell their results apart"):
        refuse_repeated([replace(STRICT, drafter=head) for head in heads])
    (tmp_path / "copy" / "model.safetensors").write_bytes(b"others")
    refuse_repeated([replace(STRICT, drafter=head) for head in heads])


def test_settings_that_make_no_difference_here_are_refused():
    """Would catch two cells of a plan that write one record: on a CPU nothing fuses or compiles layers by itself."""
    for name in ("fused", "compile"):
        cells = [replace(STRICT, backend=replace(STRICT.local, **{name: value})) for value in (None, False)]
        with pytest.raises(ValueError, match=rf"differ in backend\.{name} \(null, false\) only"):
            refuse_repeated(cells)
