"""Results in an experiment tracker, by its own library, without a network."""

import json
import sys

import pytest

from experiments import run as command
from harness.analysis import load_results
from harness.config.schema import SettingsError
from harness.config.tracker import TrackerKind
from harness.report.trackers.tracker import tracker_of
from harness.runner.plan.compose import compose_plan
from tests.runner.test_failing_cells import run_command
from tests.support import own_trackers


def sent_to_mlflow(folder):
    import mlflow

    client = mlflow.MlflowClient()
    (experiment,) = [item for item in client.search_experiments() if item.name == folder.name]
    runs = client.search_runs([experiment.experiment_id])
    by_cell = {run.data.tags["cell_id"]: run for run in runs}
    assert len(by_cell) == len(runs)
    return by_cell


def test_every_cell_is_a_run_of_mlflow_and_stays_one(tmp_path, monkeypatch, capsys):
    """Would catch numbers under a wrong cell or name, what is not known as 0, and a second set of runs."""
    pytest.importorskip("mlflow", reason="needs the extra tracking")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    for _ in range(2):
        assert run_command("Raises", tmp_path / "run", "output.tracking=mlflow") == 1
    frame, sent = load_results(tmp_path / "run").set_index("cell_id"), sent_to_mlflow(tmp_path / "run")
    assert sent.keys() == {*frame.index}
    for cell_id, row in frame.iterrows():
        data = sent[cell_id].data
        assert sent[cell_id].info.status == ("FAILED" if row["labels"] == "failed" else "FINISHED")
        assert data.params["verification.method"] == row["verification"] or row["drafter"] == "none"
        for name in ("output_tokens_per_s", "speedup", "speedup_low", "num_requests"):
            assert data.metrics.get(name) == (None if frame.isna().loc[cell_id, name] else row[name])


def test_cells_are_written_for_weights_and_biases_without_a_network(tmp_path, monkeypatch, capsys):
    """Would catch a run that asks for an account, one that tells of the machine, and runs that replace each other."""
    wandb = pytest.importorskip("wandb", reason="needs the extra tracking")
    taken, init = {}, wandb.init

    def spied(**arguments):
        run = init(**arguments)
        finish = run.finish

        def take(**ending):
            taken[run.config["cell_id"]] = run.id, dict(run.config), dict(run.summary), run.settings
            finish(**ending)

        monkeypatch.setattr(run, "finish", take)
        return run

    monkeypatch.setattr(wandb, "init", spied)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    assert run_command("Raises", tmp_path / "run", "output.tracking=wandb") == 1
    frame = load_results(tmp_path / "run").set_index("cell_id")
    assert taken.keys() == {*frame.index}
    files = [path.parent.name for path in (tmp_path / "run" / "wandb").glob("offline-*/*.wandb")]
    for cell_id, row in frame.iterrows():
        name, config, summary, settings = taken[cell_id]
        assert name == f"run-{cell_id}" and len([file for file in files if name in file]) == 1
        assert config["labels"] == row["labels"] and config["decoding.temperature"] == 1
        assert summary.get("speedup") == (None if row["labels"] == "failed" else row["speedup"])
        assert settings.x_disable_meta and settings.disable_git and settings.console == "off"
    assert "wandb sync" in capsys.readouterr().err


def test_results_that_cannot_be_sent_are_not_lost(tmp_path, monkeypatch, capsys):
    """Would catch a run that is lost with its tracker, and one that ends as if all were well."""

    class Library:
        @staticmethod
        def Settings(**settings):
            raise OSError("the tracker has gone away")

    monkeypatch.setenv("SERVER_IS_MENDED", "1")
    monkeypatch.setitem(sys.modules, "wandb", Library)
    assert run_command("Raises", tmp_path, "output.tracking=wandb") == 1
    assert "gone away" in capsys.readouterr().err and (tmp_path / "report.md").is_file()


def test_a_tracker_of_the_users_own_gets_every_cell(tmp_path, monkeypatch, capsys):
    """Would catch an own tracker that is refused, that gets other cells than the record has, or is not asked before."""
    folder = tmp_path / "run"
    monkeypatch.setattr(own_trackers, "asked", [])
    assert run_command("Raises", folder, "output.tracking=tests.support.own_trackers:IN_A_FILE") == 1
    frame = load_results(folder).set_index("cell_id")
    sent = json.loads((folder / "sent.json").read_text())
    assert own_trackers.asked == ["before the run"] and sent.keys() == {*frame.index}
    for cell_id, row in frame.iterrows():
        name, settings, numbers = sent[cell_id]
        assert name == f"run-{cell_id}" and settings["decoding.temperature"] == 1
        assert numbers.get("speedup") == (None if row["labels"] == "failed" else row["speedup"])
    assert f"sent to tests.support.own_trackers:IN_A_FILE: {folder / 'sent.json'}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mlfow", "(did you mean mlflow?)"),
        ("tests.support.own_trackers:MISSING", "that can be imported, found tests.support.own_trackers:MISSING"),
        ("tests.support.own_trackers:asked", "to be a harness.report.trackers.tracker.Tracker, found []"),
    ],
)
def test_what_is_no_tracker_is_refused_with_the_settings(name, words):
    with pytest.raises(SettingsError, match=r"^output\.tracking: ") as error:
        compose_plan([f"output.tracking={name}"])
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("IS_AWAY", "IS_AWAY: the tracking server does not answer (tests/support/own_trackers.py, line"),
        ("NEEDS_A_PACKAGE", "package_that_is_nowhere (for output.tracking="),
    ],
)
def test_a_tracker_that_takes_nothing_is_told_before_anything_runs(name, words, tmp_path, capsys):
    """Would catch hours of a run whose results have nowhere to go, and advice to install an extra that is none."""
    plan = [f"output.tracking=tests.support.own_trackers:{name}", f"output.folder={tmp_path / 'run'}"]
    assert command.main(plan) == 2
    error = capsys.readouterr().err
    assert words in error and "rejection-lab[]" not in error and not (tmp_path / "run").exists()


def test_every_built_in_tracker_is_one_of_its_own_name():
    """Would catch a path that names nothing, or a tracker that is offered under another package's name."""
    assert {kind.value: tracker_of(kind).package for kind in TrackerKind} == {"mlflow": "mlflow", "wandb": "wandb"}


def test_where_results_are_sent_belongs_to_no_cell():
    assert compose_plan(["output.tracking=wandb"]).cells == compose_plan([]).cells
