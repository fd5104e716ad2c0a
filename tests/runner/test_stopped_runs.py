"""Signals end a run in order: what was done is kept, and no process stays behind."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading

import pytest

from harness.config.cli.ending import REQUEUE
from harness.records.files import write_atomically
from harness.runner import whole_run
from harness.runner.channel import Channel
from harness.runner.launchers.local import Local
from harness.runner.launchers.local_run import LocalLauncher
from harness.runner.stop_signals import StoppedBySignal
from harness.runner.supervisor import Supervisor
from harness.runner.worker import work
from tests.runner.test_failing_cells import records_of
from tests.support.own_process import ROOT
from tests.support.supervised_runs import Counting, plan_on


def signal_when(begun, number):
    """Send this process a signal once the server is under way."""

    def send():
        begun.open().close()
        os.kill(os.getpid(), number)

    threading.Thread(target=send, daemon=True).start()


@pytest.mark.parametrize(
    ("number", "is_key"), [(signal.SIGINT, True), (signal.SIGTERM, False), (signal.SIGUSR1, False)]
)
def test_a_signal_ends_the_run_after_the_request_under_way(number, is_key, tmp_path, begun, capsys):
    """Would catch a signal that kills the run, fails the cell, or has the exit code of another."""
    display, finished = Counting(), []
    signal_when(begun, number)
    before = signal.getsignal(number)
    with pytest.raises(StoppedBySignal) as stopped:
        Supervisor(plan_on("GoesOnWhenStopped", tmp_path), display, finished).run()
    assert stopped.value.is_key == is_key and not stopped.value.is_at_once
    # half of the others are done, and of the block under way two requests
    assert display.num_requests == 2 + 2 + 2 + 2 and not finished
    assert signal.getsignal(number) is before


@pytest.mark.parametrize(
    ("where", "words"), [("before the first turn", "while models load"), ("in a turn", "stopping")]
)
def test_models_that_load_for_long_do_not_hold_up_the_end(where, words, tmp_path, begun, monkeypatch):
    """Would catch Ctrl-C that seems to do nothing until all weights are loaded and all steps compiled."""

    class Told(Counting):
        def note(self, text):
            notes.append(text)

    notes = []
    monkeypatch.setenv("LOADS", where)
    signal_when(begun, signal.SIGINT)
    with pytest.raises(StoppedBySignal) as stopped:
        Supervisor(plan_on("LoadsForEver", tmp_path), Told(), []).run()
    assert stopped.value.is_key and not stopped.value.is_at_once
    assert [words in note for note in notes if "stopping" in note] == [True]
    assert not list(tmp_path.glob("cells/*"))


def test_a_request_that_goes_on_for_long_does_not_hold_up_the_end(tmp_path, begun):
    """Would catch a run that its scheduler kills because it waited for the end of a request."""
    display = Counting()
    signal_when(begun, signal.SIGTERM)
    with pytest.raises(StoppedBySignal):
        Supervisor(plan_on("PlaysOnUntilStopped", tmp_path), display, []).run()
    assert display.num_requests == 2 + 2 + 2 + 1


def test_requests_that_were_lost_to_the_signal_are_run_again(tmp_path, begun, monkeypatch):
    """Would catch requests that count as failed because the scheduler ended their server first, and others that are
    lost with them."""
    signal_when(begun, signal.SIGTERM)
    with pytest.raises(StoppedBySignal):
        Supervisor(plan_on("DiesOfTheSignal", tmp_path), Counting(), []).run()
    monkeypatch.setenv("SERVER_IS_MENDED", "1")
    Supervisor(plan_on("DiesOfTheSignal", tmp_path), Counting(), []).run()
    records = records_of(tmp_path).values()
    assert [(len(item.requests), item.failures) for item in records] == [(4, ())] * 3
    assert [1, 1] in [[block.num_requests for block in item.blocks if block.index == 1] for item in records]


def test_a_second_key_ends_a_worker_that_does_not_answer(tmp_path, begun):
    """Would catch a run that a hanging worker keeps alive."""

    class Impatient(Counting):
        def note(self, text):
            if "Ctrl-C again" in text:
                os.kill(os.getpid(), signal.SIGINT)

    signal_when(begun, signal.SIGINT)
    with pytest.raises(StoppedBySignal) as stopped:
        Supervisor(plan_on("Hangs", tmp_path), Impatient(), []).run()
    assert stopped.value.is_at_once


def test_a_second_key_ends_the_wait_for_the_cluster(tmp_path, begun, monkeypatch):
    """Would catch a run that Ctrl-C does not end for a minute, since jobs still end their servers."""
    hurries = []

    class Closes(LocalLauncher):
        def close(self, hurry):
            hurries.append(hurry())
            os.kill(os.getpid(), signal.SIGINT)
            hurries.append(hurry())

    monkeypatch.setattr(Local, "launcher", lambda config, plan: Closes(plan))
    signal_when(begun, signal.SIGTERM)
    with pytest.raises(StoppedBySignal) as stopped:
        Supervisor(plan_on("GoesOnWhenStopped", tmp_path), Counting(), []).run()
    assert hurries == [False, True] and stopped.value.is_at_once and not stopped.value.is_key


def test_a_job_that_is_ended_by_its_cluster_can_be_queued_again(monkeypatch, tmp_path, capsys):
    """Would catch an exit code that tells the scheduler that the job failed."""

    def run_plan(plan, finished):
        raise StoppedBySignal(signal.SIGTERM, False)

    monkeypatch.setattr(whole_run, "run_plan", run_plan)
    with pytest.raises(SystemExit) as ended:
        whole_run.run_and_report(plan_on("Raises", tmp_path), lambda results: None)
    assert ended.value.code == REQUEUE == 75 and "interrupted" in capsys.readouterr().err


def test_a_report_that_breaks_says_that_the_cells_are_kept(monkeypatch, tmp_path, capsys):
    """Would catch a traceback that does not say whether the measured cells were kept."""

    def write_report(*arguments, **options):
        raise RuntimeError("a fault of a table")

    monkeypatch.setattr(whole_run, "run_plan", lambda plan, finished: None)
    monkeypatch.setattr(whole_run, "write_report", write_report)
    with pytest.raises(RuntimeError, match="a fault of a table"):
        whole_run.run_and_report(plan_on("Raises", tmp_path), lambda results: None)
    assert f"all cells are kept: rejection-lab report {tmp_path} writes it" in capsys.readouterr().err


def write_and_be_killed(path):
    os.replace = lambda *names: os.kill(os.getpid(), signal.SIGKILL)
    write_atomically(path, b"never there")


def test_half_a_file_of_a_killed_process_goes_with_the_next_run(monkeypatch, tmp_path):
    """Would catch a night of kills that fills the folder with hidden files, and a whole file that goes with them."""
    path = tmp_path / "cells" / "0123456789abcdef.json.gz"
    write_atomically(path, b"whole")
    process = multiprocessing.get_context("fork").Process(target=write_and_be_killed, args=(path,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL and len(list(path.parent.iterdir())) == 2

    def run_plan(plan, finished):
        assert list(path.parent.iterdir()) == [path]
        raise StoppedBySignal(signal.SIGTERM, False)

    monkeypatch.setattr(whole_run, "run_plan", run_plan)
    with pytest.raises(SystemExit):
        whole_run.run_and_report(plan_on("Raises", tmp_path), lambda results: None)
    assert path.read_bytes() == b"whole"


def test_workers_end_with_the_supervisor(tmp_path, begun):
    """Would catch a worker that runs on, and writes, after its run was killed."""
    code = (
        "import sys; from pathlib import Path; from harness.runner.whole_run import run_plan; "
        "from tests.support.supervised_runs import plan_on; run_plan(plan_on('Hangs', Path(sys.argv[1])), [])"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stderr=subprocess.DEVNULL) as run:
        pipe = begun.open()
        run.kill()
        # the worker holds the other end open as long as it lives
        assert pipe.read() == ""
        pipe.close()


def work_and_outlive_the_channel(connection, plan):
    """Ends once the thread that reads the channel has ended."""
    work(Channel(connection), plan, None)
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            thread.join()


def test_a_worker_that_has_stopped_ends_its_server_in_peace(tmp_path):
    """Would catch a server that runs on because its worker was cut off when the supervisor closed the channel."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=work_and_outlive_the_channel, args=(theirs, plan_on("Raises", tmp_path)))
    process.start()
    theirs.close()
    channel = Channel(ours)
    channel.send("stop")
    assert channel.receive() == ("stopped", [])
    channel.close()
    process.join()
    assert process.exitcode == 0
