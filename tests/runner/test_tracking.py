"""Results in an experiment tracker, by its own library, without a network."""

import sys

import pytest

from harness.analysis import load_results
from harness.runner.plan.compose import compose_plan
from tests.runner.test_failing_cells import run_command


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


def test_where_results_are_sent_belongs_to_no_cell():
    assert compose_plan(["output.tracking=wandb"]).cells == compose_plan([]).cells
