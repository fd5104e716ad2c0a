"""What only some settings need, missing: packages, and the environment of a server."""

import sys
import tomllib

import pytest

from experiments import run as command
from harness.runner.optional_packages import EXTRAS
from tests.support.own_process import ROOT

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


def test_a_finished_run_needs_its_server_no_more(tmp_path, capsys):
    """Would catch a finished run whose report cannot be written again, because what served it is not there any more."""
    program = tmp_path / "serve"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.support.scripted_server "$@"\n')
    program.chmod(0o755)
    served = [
        "experiment=demo_server", "backend=server", "server=vllm", "drafter=none",
        f"server.command='{program} --port {{port}} {{speculation}} {{details}}'",
        "server.num_retries=0", f"server.log_folder={tmp_path / 'logs'}", f"output.folder={tmp_path / 'run'}",
        "workload.num_prompts=2", "decoding.max_new_tokens=8", "measurement.num_resamples=100", "backend.device=cpu",
    ]  # fmt: skip
    assert command.main(served) == 0
    program.unlink()
    (tmp_path / "run" / "report.md").unlink()
    assert command.main(served) == 0 and (tmp_path / "run" / "report.md").is_file()
    capsys.readouterr()
    assert command.main([*served, "--fresh"]) == command.main([*served, "seed=7"]) == 2
    one, other = capsys.readouterr().err.splitlines()
    assert one == other and f"server.command: expected a program that starts, found no {program};" in one
