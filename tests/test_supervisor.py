"""Worker processes: what ends one of them fails a cell and not the sweep, and signals end a run in order."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.cli.command_line import REQUEUE
from harness.compose.run_plan import Resume, Workers
from harness.records.files import read_cell
from harness.records.run_status import DONE, read_status
from harness.settings.cell import CellConfig
from harness.settings.models import DrafterConfig, DrafterKind
from harness.settings.schema import SettingsError
from harness.settings.sections import BackendConfig, DecodingConfig, MeasurementConfig, VerificationConfig
from harness.settings.workload import WorkloadConfig
from harness.sweep import supervisor, whole_run
from harness.sweep.channel import Channel
from harness.sweep.launchers.local import LocalLauncher
from harness.sweep.stop_signals import StoppedBySignal
from harness.sweep.supervisor import Supervisor
from harness.sweep.worker import work
from kernels.contract import VerificationMethod
from tests.own_process import ROOT, output_of
from tests.test_failing_cells import records_of
from tests.test_sweep import Silent, plan

METHODS = (VerificationMethod.strict, VerificationMethod.block)


def plan_on(name, folder, methods=METHODS, temperatures=(1.0,), **workers):
    """The baseline and some methods on a failing server."""
    cells = [
        CellConfig(
            drafter=DrafterConfig(DrafterKind.eagle3),
            decoding=DecodingConfig(temperature=temperature, max_new_tokens=8),
            workload=WorkloadConfig(num_prompts=4, num_turns=1),
            backend=BackendConfig(kind=f"tests.failing_servers:{name}", device="cpu", dtype="float32", graphs=False),
            measurement=MeasurementConfig(num_warmup_requests=1, num_resamples=100),
            verification=VerificationConfig(method),
        )
        for temperature in temperatures
        for method in methods
    ]
    return replace(plan(folder, *cells), workers=Workers(**workers))


class Counting(Silent):
    """A display that counts what is left."""

    def leave_out(self, num_requests):
        self.total -= num_requests


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """A pipe that a server opens when its cell is under way."""
    path = tmp_path / "begun"
    os.mkfifo(path)
    monkeypatch.setenv("TELL", str(path))
    return path


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("Raises", "RuntimeError", "out of memory"),
        ("Killed", "WorkerDiedError", "SIGKILL"),
        ("LosesTheDevice", "RuntimeError", "illegal memory access"),
    ],
)
def test_what_ends_a_worker_fails_its_cell_and_another_worker_does_the_rest(name, error, words, tmp_path):
    """Would catch a sweep that ends with a worker, blames another cell, or counts a lost worker's requests twice."""
    display, finished = Counting(), []
    Supervisor(plan_on(name, tmp_path), display, finished).run()
    records = records_of(tmp_path)
    (failure,) = records["block"].failures
    assert failure.error == error and words in failure.message
    assert [len(records[method].requests) for method in ("none", "strict", "block")] == [4, 4, 0]
    assert len(finished) == 3 and display.num_requests == display.total
    # what the first worker had done is kept
    sessions = [block.session for method in ("none", "strict") for block in records[method].blocks]
    assert len(set(sessions)) == (1 if name == "Raises" else 2) and sessions[:2] == sessions[2:]


def test_a_cell_that_failed_before_its_worker_died_is_counted_once(tmp_path):
    """Would catch requests that are left out again by the next worker, and a failure that takes another's place."""
    display = Counting()
    Supervisor(plan_on("RaisesAndIsKilled", tmp_path), display, []).run()
    records = records_of(tmp_path)
    assert [records[method].failures[0].error for method in ("strict", "block")] == ["RuntimeError", "WorkerDiedError"]
    assert display.num_requests == display.total > 0


def test_a_run_from_the_start_keeps_what_its_own_workers_did(tmp_path):
    """Would catch a second worker that throws the first one's work away."""
    fresh = replace(plan_on("Killed", tmp_path), resume=Resume(is_fresh=True, retries_failed=True))
    Supervisor(fresh, Counting(), []).run()
    records = records_of(tmp_path)
    assert records["block"].has_failed
    assert len({block.session for block in records["strict"].blocks}) == 2


def test_a_run_from_the_start_takes_no_earlier_cell_after_its_worker_died(tmp_path, monkeypatch):
    """Would catch a second worker that lists what an earlier run measured as measured now."""
    run_plan = plan_on("KilledIfAsked", tmp_path)
    Supervisor(run_plan, Counting(), []).run()
    before = records_of(tmp_path)["block"].sessions
    monkeypatch.setenv("KILL", "1")
    Supervisor(replace(run_plan, resume=Resume(is_fresh=True)), Counting(), []).run()
    records = records_of(tmp_path)
    assert records["strict"].has_failed and not {*before} & {*records["block"].sessions}


def test_a_cell_that_keeps_nothing_when_it_is_preempted_fails_in_the_end(tmp_path, monkeypatch):
    """Would catch a worker that is replaced for ever, since requests finish that nothing keeps."""
    monkeypatch.setenv("ONCE", str(tmp_path / "once"))
    Supervisor(plan_on("IsPreemptedAgainAndAgain", tmp_path), Counting(), []).run()
    records = records_of(tmp_path)
    assert [item.error for item in records["block"].failures] == ["StoppedError"]
    assert [len(records[name].requests) for name in ("none", "strict")] == [4, 4]


def test_a_cell_that_advances_between_two_lost_workers_does_not_fail(tmp_path, monkeypatch):
    """Would catch a long cell that fails because hosts were lost under it, hours apart."""
    monkeypatch.setenv("ONCE", str(tmp_path / "once"))
    monkeypatch.setattr(LocalLauncher, "forgives", True)
    Supervisor(plan_on("KilledInBothBlocks", tmp_path), Counting(), []).run()
    assert (tmp_path / "once").stat().st_size == 2
    assert [len(record.requests) for record in records_of(tmp_path).values()] == [4, 4, 4]


@pytest.mark.parametrize("is_taken", [False, True], ids=["not taken", "ends before it begins"])
def test_a_host_on_which_no_worker_begins_ends_no_other_worker(is_taken, tmp_path, monkeypatch):
    """Would catch a sweep that one bad host ends, and one that starts workers there for ever."""
    started = []

    class OneHostIsBad(LocalLauncher):
        def start(self, place):
            started.append(place)
            if place == 0:
                return super().start(place)
            if not is_taken:
                raise SettingsError("the job is not taken")
            return SimpleNamespace(
                channel=None, has_ended=lambda: True, ending=lambda: "bad host", end=lambda: None, kill=lambda: None
            )

    monkeypatch.setattr(supervisor, "LOOK_S", 0.05)
    monkeypatch.setattr(supervisor, "launcher_of", OneHostIsBad)
    finished = []
    run_plan = plan_on("TellsItsDevice", tmp_path, temperatures=(0.6, 1.0, 0.8), devices=("0", "1"))
    Supervisor(run_plan, Counting(), finished).run()
    assert len(finished) == 9 and 1 <= started.count(1) <= supervisor.MAX_STARTS


def test_a_run_ends_without_the_jobs_that_its_cluster_has_not_begun(tmp_path, monkeypatch):
    """Would catch a finished run that waits for a GPU only to give it back."""
    cancelled = []

    class OneJobWaits(LocalLauncher):
        def start(self, place):
            if place == 0:
                return super().start(place)
            return SimpleNamespace(
                channel=None, has_ended=lambda: False, end=lambda: None, kill=lambda: cancelled.append(place)
            )

    monkeypatch.setattr(supervisor, "LOOK_S", 0.05)
    monkeypatch.setattr(supervisor, "launcher_of", OneJobWaits)
    run_plan = plan_on("TellsItsDevice", tmp_path, temperatures=(0.6, 1.0), devices=("0", "1"))
    Supervisor(run_plan, Counting(), finished := []).run()
    assert len(finished) == len(run_plan.cells) and cancelled == [1] and read_status(tmp_path).state == DONE


def test_a_worker_that_is_silent_for_too_long_is_ended(tmp_path, begun):
    """Would catch a sweep that waits for ever, and a limit that counts from the start and not from the last event."""

    class Clock(Counting):
        """Time stands still until the server is silent."""

        now_s, is_silent = 0.0, False

        def start(self, num_requests_total):
            super().start(num_requests_total)
            threading.Thread(target=self.hear, daemon=True).start()

        def hear(self):
            begun.open().close()
            self.is_silent = True

        def note(self, text):
            # the next worker begins
            self.is_silent = False

        def __call__(self):
            self.now_s += self.is_silent
            return self.now_s

    clock = Clock()
    Supervisor(plan_on("Hangs", tmp_path, stall_limit_s=0.3), clock, [], clock).run()
    records = records_of(tmp_path)
    assert [item.error for item in records["block"].failures] == ["StallError"]
    assert [len(records[method].requests) for method in ("none", "strict", "block")] == [4, 4, 0]


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


def test_a_second_key_ends_a_worker_that_does_not_listen(tmp_path, begun):
    class Impatient(Counting):
        def note(self, text):
            if "Ctrl-C again" in text:
                os.kill(os.getpid(), signal.SIGINT)

    signal_when(begun, signal.SIGINT)
    with pytest.raises(StoppedBySignal) as stopped:
        Supervisor(plan_on("Hangs", tmp_path), Impatient(), []).run()
    assert stopped.value.is_at_once


def test_a_job_that_is_ended_by_its_cluster_can_be_queued_again(monkeypatch, tmp_path, capsys):
    def run_plan(plan, finished):
        raise StoppedBySignal(signal.SIGTERM, False)

    monkeypatch.setattr(whole_run, "run_plan", run_plan)
    with pytest.raises(SystemExit) as ended:
        whole_run.run_and_report(plan_on("Raises", tmp_path), lambda results: None)
    assert ended.value.code == REQUEUE == 75 and "interrupted" in capsys.readouterr().err


def test_workers_end_with_the_supervisor(tmp_path, begun):
    """Would catch a worker that runs on, and writes, after its run was killed."""
    code = (
        "import sys; from pathlib import Path; from harness.sweep.whole_run import run_plan; "
        "from tests.test_supervisor import plan_on; run_plan(plan_on('Hangs', Path(sys.argv[1])), [])"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stderr=subprocess.DEVNULL) as run:
        pipe = begun.open()
        run.kill()
        # the worker holds the other end open as long as it lives
        assert pipe.read() == ""
        pipe.close()


def work_and_outlive_the_channel(connection, plan):
    """Ends once nothing listens to the channel any more."""
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


def test_groups_run_on_several_devices_and_each_stays_on_one(tmp_path):
    """Would catch arms of one comparison on two devices, and a second device that gets nothing."""
    devices = {}
    Supervisor(plan_on("TellsItsDevice", tmp_path, temperatures=(0.6, 1.0), devices=("3", "5")), Counting(), []).run()
    for path in (tmp_path / "cells").iterdir():
        record = read_cell(path)
        devices.setdefault(record.config["decoding"]["temperature"], set()).add(record.provenance["sampling_core"])
    assert sorted(devices) == [0.6, 1.0] and sorted(map(sorted, devices.values())) == [["3"], ["5"]]


def test_what_no_worker_can_run_ends_the_run_with_its_reason(tmp_path):
    """Would catch a mistake of the settings that becomes a failed cell, or starts workers again and again."""
    first = plan_on("Raises", tmp_path).cells[1]
    second = replace(first, backend=replace(first.backend, prompt_tokens_beside_rounds=64))
    with pytest.raises(ValueError, match="two cells differ in"):
        Supervisor(replace(plan_on("Raises", tmp_path), cells=(first, second)), Counting(), []).run()
    assert not (tmp_path / "cells").exists()


@pytest.mark.parametrize("num_gone", [1, 2])
def test_prompts_that_a_worker_cannot_read_fail_their_cells_only(num_gone, tmp_path):
    """Would catch a night's sweep that ends with the file of one group, and a run without any prompts that goes on."""
    paths = [tmp_path / f"{number}.jsonl" for number in range(2)]
    for path in paths:
        path.write_text('{"prompt": "Why?"}\n' * 4)

    class Removes(Counting):
        """The supervisor has read all prompts, the workers have not."""

        def start(self, num_requests_total):
            super().start(num_requests_total)
            for path in paths[:num_gone]:
                path.unlink()

    run_plan = plan_on("Raises", tmp_path, METHODS[:1])
    cells = [
        replace(cell, workload=WorkloadConfig(path=str(path), num_turns=1)) for path in paths for cell in run_plan.cells
    ]
    sweep = Supervisor(replace(run_plan, cells=tuple(cells)), display := Removes(), [])
    if num_gone == 2:
        with pytest.raises(ValueError, match=str(paths[0])):
            sweep.run()
        assert not (tmp_path / "cells").exists() and read_status(tmp_path) is None
        return
    sweep.run()
    by_group = {path: [] for path in paths}
    for path in (tmp_path / "cells").iterdir():
        record = read_cell(path)
        by_group[Path(record.config["workload"]["path"])].append(record)
    assert all(str(paths[0]) in record.failures[0].message for record in by_group[paths[0]])
    assert [len(record.requests) for path in paths for record in by_group[path]] == [0, 0, 4, 4]
    assert display.num_requests == display.total == 8


def test_a_host_that_can_run_nothing_ends_no_other_worker(tmp_path, monkeypatch):
    """Would catch a sweep that one broken GPU of a cluster ends, and a group of which it is forgotten what to retry."""
    run_plan = plan_on("RaisesOnAGoodHost", tmp_path, temperatures=(0.6, 1.0), devices=("0",))
    Supervisor(run_plan, Counting(), []).run()
    monkeypatch.setenv("SERVER_IS_MENDED", "1")
    again = replace(run_plan, resume=Resume(retries_failed=True), workers=Workers(("bad", "0")))
    with pytest.raises(ValueError, match="no GPU here"):
        Supervisor(again, Counting(), []).run()
    monkeypatch.setattr(LocalLauncher, "forgives", True)
    finished = []
    Supervisor(again, Counting(), finished).run()
    assert len(finished) == 6
    listed = json.loads((tmp_path / "run.json").read_text())["cells"]
    assert all(len(read_cell(tmp_path / "cells" / f"{name}.json.gz").requests) == 4 for name in listed)


def test_the_supervisor_needs_no_torch(tmp_path):
    """Would catch a GPU that the supervisor holds, and seconds before the first message."""
    cells = "'drafter=eagle3', 'verification=strict,block', 'workload.num_prompts=4', 'workload.num_turns=1'"
    server = f"'backend.kind=tests.fake_servers:FakeServer', 'backend.device=cpu', 'output.folder={tmp_path}'"
    code = f"import sys; from experiments.run import main; assert main([{cells}, {server}]) == 0; "
    assert output_of(code + "print('torch' in sys.modules)").splitlines()[-1] == "False"


def test_what_a_report_needs_is_imported_while_the_workers_load(tmp_path):
    """Would catch seconds at the end of every run in which nothing but imports happens."""
    code = (
        "import sys, threading; from pathlib import Path; from harness.sweep.whole_run import IMPORTS, run_plan\n"
        f"from tests.test_supervisor import plan_on; run_plan(plan_on('Raises', Path({str(tmp_path)!r})), [])\n"
        "for thread in threading.enumerate():\n"
        "    if thread.name == IMPORTS:\n"
        "        thread.join()\n"
        "needed = {'matplotlib.backends.backend_agg', 'scipy.special', 'pandas', 'harness.report.figures.write'}\n"
        "print(needed - {*sys.modules}, 'torch' in sys.modules)"
    )
    assert output_of(code).splitlines()[-1] == "set() False"


def test_threads_are_chosen_before_torch_is_there():
    """Would catch two threads that wait for each other, a larger model on one, and a number of the user's overruled."""
    code = (
        "import os; from harness.settings.cell import CellConfig; from harness.settings.models import TargetConfig; "
        "from harness.sweep.cpu_threads import VARIABLE, choose_threads\n"
        "for given, path in ((None, None), (None, 'folder'), ('7', None)):\n"
        "    os.environ.pop(VARIABLE, None)\n"
        "    os.environ.update({VARIABLE: given} if given else {})\n"
        "    choose_threads([CellConfig(TargetConfig(path=path))])\n"
        "    print(os.environ.get(VARIABLE))"
    )
    assert output_of(code).split() == ["1", "None", "7"]
