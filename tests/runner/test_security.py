"""What a run may not do with what it is given: run code, leave its folder, or write down secrets of the environment."""

import ast
import gzip
import json
import time
from dataclasses import replace

from experiments import reproduce
from harness.analysis.results import read_results
from harness.records.files import read_cell, write_cell
from harness.records.schema import Failure
from harness.report.write import write_results
from tests.project.test_layers import MODULES
from tests.runner.test_backend_seam import run_on
from tests.runner.test_failing_cells import run_command
from tests.support.synthetic_cells import simulated_run

SOURCES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}
RUN_CODE = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
"""Modules whose files run code when they are read."""
FORBIDDEN = {"eval", "exec", "torch.load", "yaml.load", "yaml.unsafe_load", "os.system", "os.popen", "pd.read_pickle"}
SAFE_ARGUMENTS = {"trust_remote_code": "True", "allow_pickle": "True", "shell": "True", "weights_only": "False"}
"""Argument -> the value that no call may give by itself; a setting may."""
CONFINED = {"harness.workload.tasks.sandboxed_program": {"exec"}}
"""The program that runs a model's code: a process of its own, confined, and only where measurement.run_code asks."""
CLOCKS_THAT_CAN_BE_SET = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow"}
HOSTILE = "../../../<script>document.hacked = 1</script>"


def calls(module):
    return [node for node in ast.walk(SOURCES[module]) if isinstance(node, ast.Call)]


def imported(module):
    nodes = list(ast.walk(SOURCES[module]))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return names | {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}


def test_nothing_that_is_read_can_run_code():
    """Would catch an unpickled file, an evaluated text, a shell, and remote code that is trusted without a setting."""
    found = {module: {name.split(".")[0] for name in imported(module)} & RUN_CODE for module in SOURCES}
    for module in SOURCES:
        for call in calls(module):
            given = {str(item.arg): ast.unparse(item.value) for item in call.keywords}
            name = ast.unparse(call.func)
            if name != "torch.load" or given.get("weights_only") != "True":
                found[module] |= {name} & FORBIDDEN
            found[module] |= {name for name, value in given.items() if SAFE_ARGUMENTS.get(name) == value}
    assert {module: names for module, names in found.items() if names} == CONFINED


def test_no_duration_is_read_from_a_clock_that_can_be_set():
    """Would catch a difference of times of day: the system sets that clock, back too."""
    found = {name for name in SOURCES for call in calls(name) if ast.unparse(call.func) in CLOCKS_THAT_CAN_BE_SET}
    # when something was done, as a label; and how long ago another process was last heard of
    labels = {"harness.records.provenance", "harness.runner.arm", "harness.runner.manifest"}
    labels |= {"harness.plugins.vllm.recording", "harness.runner.plan.unnamed"}
    assert found == labels | {"harness.records.run_status", "harness.backends.server.process"}


def test_a_run_survives_a_clock_that_is_set_back(tmp_path, monkeypatch):
    """Would catch a record that is refused, or a negative time, because the system's clock went back an hour."""
    times = iter(range(2_000_000_000, 0, -3600))
    monkeypatch.setattr(time, "time", lambda: float(next(times)))
    _, frame = run_on(tmp_path, "FakeServer")
    assert (frame["wall_s"] > 0).all()


def test_names_in_records_stay_in_the_folder_of_the_report(tmp_path):
    """Would catch a title, target, category or prompt id that becomes part of a path."""
    folder = simulated_run(tmp_path / "a" / "run", methods=("strict", "block"), temperatures=(1.0,), num_prompts=2)
    make_hostile(folder)
    before = set(tmp_path.rglob("*"))
    write_results(read_results(folder), folder, html=True)
    made = set(tmp_path.rglob("*")) - before
    assert made and all(path.is_relative_to(folder) for path in made)


def make_hostile(folder):
    """Give every text of a run's records that a report shows a hostile value."""
    manifest = json.loads((folder / "run.json").read_text())
    manifest |= dict.fromkeys(("name", "title", "command", "shows", "does_not_show"), HOSTILE)
    (folder / "run.json").write_text(json.dumps(manifest))
    for path in (folder / "cells").iterdir():
        cell = read_cell(path)
        requests = [replace(item, prompt_id=HOSTILE + item.prompt_id, category=HOSTILE) for item in cell.requests]
        config = {**cell.config, "target": {**cell.config["target"], "name": HOSTILE, "path": HOSTILE}}
        texts = dict.fromkeys(("fallbacks", "assumptions", "labels"), (HOSTILE,))
        texts |= {"failures": (Failure("Error", HOSTILE, HOSTILE),)}
        write_cell(replace(cell, requests=tuple(requests), config=config, **texts), folder / "cells")


def test_records_cannot_ask_to_run_the_code_of_a_checkpoint(tmp_path, capsys):
    """Would catch reproduce running what someone else's records trust."""
    folder = simulated_run(tmp_path / "run", methods=("strict",), temperatures=(1.0,), num_prompts=1)
    for path in (folder / "cells").iterdir():
        cell = read_cell(path)
        target = {**cell.config["target"], "path": str(tmp_path), "trust_remote_code": True}
        drafter = {**cell.config["drafter"], "path": str(tmp_path)}
        changed = {"target": target, "drafter": cell.config["drafter"] if drafter["kind"] == "none" else drafter}
        write_cell(replace(cell, config={**cell.config, **changed}), folder / "cells")
    assert reproduce.main([str(folder)]) == 2
    assert "--trust-remote-code" in capsys.readouterr().err and not (tmp_path / "run-again").exists()


def test_no_secret_of_the_environment_is_written(tmp_path, monkeypatch, capsys):
    """Would catch a provenance, a traceback or a settings page that holds the environment."""
    for name in ("HF_TOKEN", "OPENAI_API_KEY", "MY_PASSWORD"):
        monkeypatch.setenv(name, "hunter2hunter2")
    assert run_command("Raises", tmp_path) == 1
    said = capsys.readouterr()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.suffix == ".gz" for path in files) and "hunter2" not in said.out + said.err
    for path in files:
        content = path.read_bytes()
        assert b"hunter2" not in (gzip.decompress(content) if path.suffix == ".gz" else content), path
