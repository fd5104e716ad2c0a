"""What only some settings need, missing: packages, and the environment of a server."""

import sys
import tomllib

import pytest

from experiments import run as command
from harness.sweep import whole_run
from harness.sweep.optional_packages import EXTRAS
from tests.own_process import ROOT

SERVED = "backend=server server.url=http://localhost:1 target=local target.path=zoo drafter=none verification=strict"
SETTINGS = {
    "mlflow": "output.tracking=mlflow",
    "wandb": "output.tracking=wandb",
    "submitit": "launcher=slurm",
    "ray": "launcher=ray",
    "llguidance": "workload=reasoning_json constraint=mask",
    "jsonschema": "workload=reasoning_json constraint=none",
    "aiohttp": SERVED,
    "prometheus_client": SERVED,
}


@pytest.mark.parametrize("package", SETTINGS)
def test_a_missing_package_is_said_before_anything_runs(package, tmp_path, monkeypatch, capsys):
    """Would catch a package that is missed after minutes of loading, or an extra that does not bring it."""
    monkeypatch.setitem(sys.modules, package, None)
    assert command.main([*SETTINGS[package].split(), f"output.folder={tmp_path / 'run'}"]) == 2
    (extra,) = (name for name, packages in EXTRAS.items() if package in packages)
    error = capsys.readouterr().err
    assert package in error and f"pip install 'rejection-lab[{extra}]'" in error and error.count("\n") == 1
    assert not (tmp_path / "run").exists()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert any(item.startswith(package.replace("_", "-")) for item in extras[extra])


def test_a_missing_environment_is_said_before_anything_runs(tmp_path, capsys):
    """Would catch one that is missed after the cells of this engine have run for an hour."""
    settings = ["experiment=demo_server", "server=vllm", f"server.environment={tmp_path / 'none'}"]
    assert command.main([*settings, f"output.folder={tmp_path / 'run'}"]) == 2
    error = capsys.readouterr().err
    assert "server.environment: expected" in error and error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_run_that_goes_on_may_have_done_without_its_environment(tmp_path, monkeypatch, capsys):
    """Would catch a finished run whose report cannot be written again, because an environment is there no more."""
    (tmp_path / "run.json").write_text("{}")
    reached = []
    monkeypatch.setattr(whole_run, "run_plan", lambda plan, finished: reached.append(plan))
    settings = ["experiment=demo_server", "server=vllm", f"server.environment={tmp_path / 'none'}"]
    command.main([*settings, f"output.folder={tmp_path}"])
    assert reached and "server.environment" not in capsys.readouterr().err
