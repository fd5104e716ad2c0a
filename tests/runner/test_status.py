"""How far a run is, asked from another shell."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from experiments import replay, report, reproduce
from experiments import status as command
from harness.config.cli.command_line import CommandParser
from harness.records.files import SUFFIX, read_cell
from harness.records.run_status import DONE, RUNNING, STATUS, STOPPED, RunStatus, read_status
from harness.records.runs import CELLS, MANIFEST, RUNS
from harness.runner.supervisor import Supervisor
from tests.support.own_process import output_of
from tests.support.supervised_runs import Counting, plan_on

STATUS_OF_A_RUN = RunStatus(
    state=RUNNING,
    num_cells=10,
    num_finished=4,
    num_failed=1,
    running=("eagle3 strict",),
    num_requests_left=300,
    num_requests_done=100,
    num_devices=2,
    elapsed_s=1800.0,
    earlier_device_s=7200.0,
)


def test_a_running_run_says_what_is_done_and_what_is_left(tmp_path, capsys):
    """Would catch failed cells that count as done, one device's hours, and a rest at the pace of earlier sessions."""
    STATUS_OF_A_RUN.write(tmp_path)
    assert command.main([str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    for words in (
        "running",
        "3 of 10 cells done, 1 failed, 6 left",
        "eagle3 strict",
        "3.0 device-hours",
        "1 h 30 min, 3.0 device-hours",
    ):
        assert words in shown


def test_all_runs_are_listed_the_last_first(tmp_path, monkeypatch, capsys):
    """Would catch a damaged status that hides the other runs, and a run of last week above the one that goes on."""
    monkeypatch.chdir(tmp_path)
    assert command.main([]) == 0 and "no run has been started in results/runs" in capsys.readouterr().out
    now = time.time()
    for name, age_s, state in (("zebra", 0, RUNNING), ("apple", 600_000, STOPPED), ("broken", 0, "?")):
        (tmp_path / RUNS / name).mkdir(parents=True)
        replace(STATUS_OF_A_RUN, state=state, updated_unix_s=now - age_s).write(tmp_path / RUNS / name)
    assert command.main([]) == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == "zebra: running; 3 of 10 cells done, 1 failed, 6 left"
    assert second.startswith("apple: stopped, files missing: 1; ") and "broken" in third and "found '?'" in third


def test_the_rest_is_not_loaded_again():
    """Would catch hours that are left of a run of a minute, since its first request came after it had loaded."""
    assert replace(STATUS_OF_A_RUN, elapsed_s=1800.0, loading_s=1700.0).left_s == 300.0


def test_workers_in_the_queue_of_a_cluster_are_told_and_cost_nothing(tmp_path, capsys):
    """Would catch device-hours of workers that have not begun, and a run that seems to stand still."""
    replace(STATUS_OF_A_RUN, num_waiting=3, own_device_s=1800.0).write(tmp_path)
    command.main([str(tmp_path)])
    shown = capsys.readouterr().out
    assert "queue: 3" in shown and "2.5 device-hours" in shown


def test_a_run_that_was_killed_is_not_called_running(tmp_path, capsys):
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    replace(STATUS_OF_A_RUN, pid=process.pid, num_finished=0, num_failed=0).write(tmp_path)
    assert command.main([str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert "killed" in shown and "running" not in shown and "left:" not in shown


def test_a_run_that_was_killed_says_how_it_goes_on(tmp_path, capsys):
    """Would catch a user who starts anew, because nothing says that the run goes on, on which devices, with what."""
    plan = plan_on("KilledIfAsked", tmp_path, devices=("0",))
    Supervisor(plan, Counting(), []).run()
    status = read_status(tmp_path)
    replace(status, state=RUNNING, num_finished=1, started="before").write(tmp_path)
    assert command.main([str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert "killed" in shown and "the same command goes on where the run was stopped: command --devices 0\n" in shown
    assert "--retry-failed" not in shown


def test_a_pid_that_was_given_again_is_not_the_run(tmp_path):
    """Would catch a run that is called running because some later process has its pid."""
    assert STATUS_OF_A_RUN.is_alive and not replace(STATUS_OF_A_RUN, started="0").is_alive


def test_a_status_of_an_earlier_version_is_alive_as_long_as_it_is_written(tmp_path):
    """Would catch the start of the reading process as that of the run."""
    STATUS_OF_A_RUN.write(tmp_path)
    older = json.loads((tmp_path / STATUS).read_text())
    del older["pids"], older["started"]
    (tmp_path / STATUS).write_text(json.dumps(older | {"pid": 1, "updated_unix_s": time.time()}))
    assert read_status(tmp_path).is_alive and not replace(read_status(tmp_path), updated_unix_s=0).is_alive


def test_a_run_on_another_host_is_alive_as_long_as_it_writes(tmp_path):
    now = time.time()
    elsewhere = replace(STATUS_OF_A_RUN, host=socket.gethostname() + "x", pid=os.getpid(), updated_unix_s=now)
    assert elsewhere.is_alive and not replace(elsewhere, updated_unix_s=now - 1000).is_alive


@pytest.mark.parametrize(("name", "num_failed", "code"), [("FailingServer", 0, 0), ("Raises", 1, 1)])
def test_a_run_writes_its_status(name, num_failed, code, tmp_path, monkeypatch, capsys):
    """Would catch a status that stays at running, and sessions whose time is forgotten."""
    if not num_failed:
        monkeypatch.setenv("SERVER_IS_MENDED", "1")
    replace(STATUS_OF_A_RUN, state=STOPPED).write(tmp_path)
    Supervisor(plan_on(name, tmp_path), Counting(), []).run()
    status = read_status(tmp_path)
    assert (status.state, status.num_finished, status.num_failed) == (DONE, 3, num_failed)
    assert status.earlier_device_s == STATUS_OF_A_RUN.device_s and 0 < status.elapsed_s < 600
    assert command.main([str(tmp_path)]) == code
    assert f"no report yet: rejection-lab report {tmp_path} writes it" in capsys.readouterr().out


def test_a_run_whose_records_are_lost_is_not_done(tmp_path, monkeypatch, capsys):
    """Would catch a run that is called done by its own word, whatever has become of its records since."""
    monkeypatch.setenv("SERVER_IS_MENDED", "1")
    ended, run = tmp_path / "ended", tmp_path / "run"
    Supervisor(plan_on("FailingServer", ended), Counting(), []).run()
    shutil.copytree(ended, run)
    first, second, third = sorted((run / CELLS).iterdir())
    first.unlink()
    assert command.main([str(run)]) == 1
    shown = capsys.readouterr().out
    assert "run: done, files missing: 1\n2 of 3 cells done, 0 failed, 1 left\n" in shown
    assert f"missing: cells/{first.name}\n" in shown and "which runs their cells again: command\n" in shown
    second.write_bytes(second.read_bytes()[:-1])
    # whole, but not what the run wrote there
    shutil.copy(ended / CELLS / first.name, third)
    assert command.main([str(run)]) == report.main([str(run), "--format", "csv"]) == 2
    shown = capsys.readouterr().out
    assert "run: done, files missing: 1, files damaged: 2\n0 of 3 cells done, 0 failed, 3 left\n" in shown
    assert all(f"damaged: cells/{each.name}\n" in shown for each in (second, third))
    Supervisor(plan_on("FailingServer", run), Counting(), []).run()
    assert command.main([str(run)]) == 0 and "run: done\n3 of 3 cells done" in capsys.readouterr().out
    shutil.rmtree(run / CELLS)
    assert command.main([str(run)]) == report.main([str(run), "--format", "csv"]) == 2
    (run / MANIFEST).unlink()
    assert command.main([str(run)]) == 2 and f"missing: {MANIFEST}\n" in capsys.readouterr().out


def test_a_failure_that_a_run_took_back_is_not_lost(tmp_path, capsys):
    """Stopped after --retry-failed has taken the failed record away. Would catch files to bring back that the run
    itself removed, and a cell that is counted as left twice."""
    Supervisor(plan_on("Raises", tmp_path), Counting(), []).run()
    records = {path: read_cell(path) for path in (tmp_path / CELLS).glob(f"*{SUFFIX}")}
    (failed,) = (path for path, record in records.items() if record.has_failed)
    failed.unlink()
    replace(read_status(tmp_path), state=STOPPED, num_finished=2, num_failed=0).write(tmp_path)
    assert command.main([str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert "2 of 3 cells done, 0 failed, 1 left\n" in shown and "missing" not in shown


def test_a_run_that_loads_is_found_and_so_is_one_whose_cells_all_failed(tmp_path, capsys):
    """Would catch a run that `status` does not list while it loads, or never if no cell has begun."""

    class Asks(Counting):
        def note(self, text):
            if not self.asked:
                self.asked = command.main([str(tmp_path)]), capsys.readouterr().out

        asked = None

    display = Asks()
    Supervisor(plan_on("CannotBeMade", tmp_path), display, []).run()
    code, shown = display.asked
    assert code == 0 and "running" in shown and "3 left, loading" in shown
    assert command.main([str(tmp_path)]) == 1
    assert "0 of 3 cells done, 3 failed, 0 left" in capsys.readouterr().out


@pytest.mark.parametrize("content", [None, "{", '{"state": "done"}', "[]"])
def test_what_is_no_status_is_a_mistake(content, tmp_path, capsys):
    if content is not None:
        (tmp_path / STATUS).write_text(content)
    assert command.main([str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("module", [command, report, replay, reproduce], ids=lambda module: module.__name__)
def test_every_command_takes_the_name_of_a_run(module, tmp_path, monkeypatch, capsys):
    """Would catch a command that looks for the name in the working folder only."""
    monkeypatch.chdir(tmp_path)
    STATUS_OF_A_RUN.write(RUNS / "quickstart")
    found = []

    def call(parser, run, arguments, wrong_input=1):
        found.append(parser.parse(arguments))
        return 0

    monkeypatch.setattr(CommandParser, "call", call)
    for text in ("quickstart", str(RUNS / "quickstart"), "not_there"):
        assert module.main([text]) == 0
    paths = [vars(options)["name" if module is command else "path"] for options in found]
    assert paths == [RUNS / "quickstart", RUNS / "quickstart", Path("not_there")]
    monkeypatch.undo()
    assert module.main(["--help"]) == 0 and "name of a run in results/runs" in " ".join(capsys.readouterr().out.split())


def test_the_command_needs_no_torch(tmp_path):
    STATUS_OF_A_RUN.write(tmp_path)
    code = f"import sys; from experiments.status import main; main([{str(tmp_path)!r}]); "
    assert output_of(code + "print({'torch', 'pandas'} & set(sys.modules))").splitlines()[-1] == "set()"
