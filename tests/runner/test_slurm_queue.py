"""The queue of SLURM: asked once for all jobs, and a controller that does not answer ends none."""

import os
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from harness.config.schema import SettingsError
from harness.runner.launchers import slurm_queue
from harness.runner.launchers.slurm import Slurm
from harness.runner.launchers.slurm_queue import SlurmQueue
from harness.runner.supervisor import Supervisor
from tests.support.supervised_runs import Counting, plan_on


@pytest.fixture
def squeue(tmp_path, monkeypatch):
    """Writes the body of a script that stands for the command of SLURM, which notes that it was asked."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def write(body):
        (tmp_path / "squeue").write_text(f"#!/bin/sh\necho asked >> {tmp_path}/asked\n{body}\n")
        (tmp_path / "squeue").chmod(0o755)
        return tmp_path / "asked"

    return write


def test_slurm_is_asked_once_for_all_jobs(squeue):
    """Would catch a controller that is asked job by job, and a job that it has forgotten and that is waited for."""
    asked = squeue("echo 7 RUNNING; echo 8 COMPLETED; echo 10 PENDING")
    queue = SlurmQueue()
    queue._asking = threading.current_thread()
    jobs = ("7", "8", "9", "10")
    assert not any(map(queue.has_ended, jobs))
    queue.ask()
    assert [queue.has_ended(job) for job in jobs] == [False, True, True, False]
    assert asked.read_text().count("asked") == 1


@pytest.mark.parametrize("body", ["exit 1", "echo slurm_load_jobs error: timed out", "exec tail -f /dev/null"])
def test_a_controller_that_does_not_answer_ends_no_job(body, squeue, monkeypatch):
    """Would catch jobs that are given up while the controller is restarted, and one that is asked without a limit."""
    monkeypatch.setattr(slurm_queue, "ANSWER_S", 0.2)
    squeue(body)
    queue = SlurmQueue()
    queue._asking = threading.current_thread()
    assert not queue.has_ended("7")
    queue.ask()
    assert not queue.has_ended("7")


def test_the_run_goes_on_while_the_controller_thinks(monkeypatch):
    """Would catch a run in which nothing happens until the controller answers."""
    may_answer = threading.Event()

    def answer(command, **arguments):
        if threading.current_thread() is threading.main_thread():
            raise OSError("the run waits")
        may_answer.wait()
        return SimpleNamespace(stdout="7 COMPLETED\n")

    monkeypatch.setattr(slurm_queue.subprocess, "run", answer)
    queue = SlurmQueue()
    assert not queue.has_ended("7")
    queue.cancel("8")
    may_answer.set()
    queue.close(lambda: False)
    queue._asking.join()
    assert queue.has_ended("7") and not queue._unwanted


def test_a_job_whose_end_the_controller_does_not_take_is_tried_again_and_told_of(squeue, tmp_path, monkeypatch, capsys):
    """Would catch a job that goes on for days because the controller was restarted when it was given up."""
    monkeypatch.setattr(slurm_queue, "AGAIN_S", 0.01)
    squeue("echo 7 RUNNING; echo 8 COMPLETED")
    cancels = tmp_path / "scancel"
    cancels.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/cancelled\n[ -e {tmp_path}/well ]\n')
    cancels.chmod(0o755)
    queue = SlurmQueue()
    for job in ("7", "8"):
        queue.cancel(job)
    queue.close(lambda: False)
    told = capsys.readouterr().err
    assert "scancel 7\n" in told and "8" not in told
    (tmp_path / "well").touch()
    queue = SlurmQueue()
    queue.cancel("7")
    queue.close(lambda: False)
    assert capsys.readouterr().err == "" and "--quiet 7" in (tmp_path / "cancelled").read_text()


def test_a_job_that_slurm_refuses_names_what_was_asked_for(tmp_path, monkeypatch):
    """Would catch a user who is told that a node configuration is not available, and not which setting asked for it."""
    submitit = pytest.importorskip("submitit", reason="needs the extra slurm")

    class Refuses:
        def __init__(self, **arguments):
            pass

        def update_parameters(self, **parameters):
            pass

        def submit(self, *arguments):
            raise submitit.core.utils.FailedJobError("Requested node configuration is not available")

    monkeypatch.setattr(submitit, "AutoExecutor", Refuses)
    settings = {"gpus_per_worker": 9, "gpu_type": "h100", "partition": "gpu"}
    config = Slurm(host="127.0.0.1", **settings)
    with pytest.raises(SettingsError, match="node configuration") as found:
        Supervisor(replace(plan_on("Raises", tmp_path), launcher=config), Counting(), []).run()
    assert all(f"launcher.{name}={value}" in str(found.value) for name, value in settings.items())
