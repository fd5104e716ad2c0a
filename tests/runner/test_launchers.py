"""Workers that a cluster starts: the same cells as on one host, in one folder, whatever happens to a worker."""

import errno
import os
import re
import socket
import subprocess
import sys
from dataclasses import replace
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from types import SimpleNamespace

import pytest

from experiments import run as command
from harness.config.cli.ending import REQUEUE
from harness.config.schema import SettingsError
from harness.records.run_status import read_status
from harness.records.runs import read_runs
from harness.runner import supervisor
from harness.runner.launchers import remote
from harness.runner.launchers.ray import Ray
from harness.runner.launchers.remote import RemoteLauncher
from harness.runner.launchers.slurm import Executor, Slurm
from harness.runner.plan.compose import compose_plan
from harness.runner.supervisor import Supervisor
from tests.runner.test_failing_cells import records_of, run_command
from tests.support.own_process import output_of
from tests.support.supervised_runs import Counting, plan_on

HERE = "launcher.host=127.0.0.1"
SMALL = ("launcher.gpus_per_worker=0", "launcher.cpus_per_worker=1")


def has_slurm():
    try:
        return subprocess.run(["scontrol", "ping"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


CLUSTERS = [
    pytest.param("submitit", id="submitit on this host"),
    pytest.param("slurm", marks=pytest.mark.skipif(not has_slurm(), reason="no controller of SLURM answers here")),
    "ray",
]


@pytest.fixture(scope="module")
def signs(tmp_path_factory):
    """A folder of files by which processes tell each other something; a cluster knows it from its start."""
    folder = tmp_path_factory.mktemp("signs")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("ONCE", folder / "once"), ("MEET", folder / "meet"), ("SUPERVISOR", os.getpid())):
            patch.setenv(name, str(value))
        yield folder


@pytest.fixture(scope="module")
def ray_cluster(signs):
    """The address of two hosts with one CPU core each, both of them this one."""
    pytest.importorskip("ray", reason="needs the extra ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    yield cluster.address
    cluster.shutdown()


@pytest.fixture
def cluster(request):
    """The settings of a cluster."""
    if request.param == "ray":
        address = request.getfixturevalue("ray_cluster")
        return ("launcher=ray", f"launcher.address={address}", *SMALL)
    pytest.importorskip("submitit", reason="needs the extra slurm")
    return ("launcher=slurm", *((HERE, "launcher.executor=local") if request.param == "submitit" else ()), *SMALL)


@pytest.fixture
def run_on(signs, tmp_path):
    """Runs a baseline and two methods on a server; returns the exit code."""
    for path in signs.iterdir():
        path.unlink()
    os.mkfifo(signs / "meet")
    return lambda name, folder, *options: run_command(name, tmp_path / folder, "--stall-limit", "300", *options)


@pytest.mark.parametrize("cluster", CLUSTERS, indirect=True)
def test_groups_run_on_several_workers_and_their_records_lie_together(cluster, run_on, tmp_path):
    """Would catch a worker that gets nothing, a group on two of them, cells that are others than on one host, and a
    secret that stays on the disk."""
    cells = "seed=0,1"
    assert run_on("MeetsAnother", "here", cells, "--devices", "0,1") == 0
    assert run_on("MeetsAnother", "there", cells, *cluster, "launcher.num_workers=2") == 0
    here, there = (read_runs(tmp_path / name)[0].cells for name in ("here", "there"))
    assert [item.cell_id for item in here] == [item.cell_id for item in there] and len(there) == 6
    assert [item.requests for item in here] == [item.requests for item in there]
    of_group = {item.config["seed"]: item.sessions for item in there}
    assert {item.sessions for item in there} == {*of_group.values()} and len({*of_group.values()}) == 2
    assert (status := read_status(tmp_path / "there")).device_s > 0 and status.num_finished == 6
    assert not list((tmp_path / "there").glob("workers/*_submitted.pkl"))


@pytest.mark.parametrize("cluster", CLUSTERS, indirect=True)
@pytest.mark.parametrize("name", ["KilledOnce", "IsPreempted"])
def test_another_worker_goes_on_where_one_was_lost(name, cluster, run_on, tmp_path):
    """Would catch a cell that fails because its worker was taken away, also twice, and one that begins anew."""
    assert run_on(name, "run", *cluster) == 0
    records = records_of(tmp_path / "run")
    assert [len(record.requests) for record in records.values()] == [4, 4, 4]
    # what was done before was not run again
    assert [len(records[name].sessions) for name in ("none", "strict")] == [2, 2]


@pytest.mark.parametrize("cluster", CLUSTERS, indirect=True)
def test_a_cell_with_which_two_workers_were_lost_has_failed(cluster, run_on, tmp_path):
    """Would catch a cell that is tried for ever, and others that fail with it."""
    assert run_on("KilledWhenMade", "run", *cluster) == 1
    records = records_of(tmp_path / "run")
    assert [item.error for item in records["strict"].failures] == ["WorkerDiedError"]
    assert [len(records[name].requests) for name in ("none", "block")] == [4, 4]


@pytest.mark.parametrize("cluster", CLUSTERS, indirect=True)
def test_a_run_that_is_ended_by_its_cluster_ends_its_workers_and_goes_on_later(cluster, run_on, tmp_path, capsys):
    """Would catch a worker that runs on, or that fails its cell, when the run is to end."""
    assert run_on("EndsTheRun", "run", *cluster) == REQUEUE
    assert not list((tmp_path / "run").glob("cells/*"))
    assert run_on("EndsTheRun", "run", *cluster) == 0
    assert not any(record.has_failed for record in records_of(tmp_path / "run").values())


def on_this_host(plan, **settings):
    return replace(plan, launcher=Slurm(executor=Executor.local, gpus_per_worker=0, host="127.0.0.1", **settings))


def test_a_job_that_ends_before_it_begins_ends_the_run_with_its_reason(tmp_path, monkeypatch):
    """Would catch a run that waits for ever for a job, here one that finds another folder than the run's."""
    pytest.importorskip("submitit", reason="needs the extra slurm")
    monkeypatch.setattr(supervisor, "LOOK_S", 0.1)
    with pytest.raises(ValueError, match=r"a file system that all hosts of the run share"):
        # no lease: this is not the folder of a run
        Supervisor(on_this_host(plan_on("Raises", tmp_path)), Counting(), []).run()


def test_only_who_knows_the_secret_of_a_run_is_let_in(tmp_path):
    """Would catch a stranger who is taken for a worker, or who holds up the workers."""

    class Launcher(RemoteLauncher):
        def submit(self, invitation, plan):
            self.invitation = invitation
            return SimpleNamespace()

    plan = on_this_host(plan_on("Raises", tmp_path))
    launcher = Launcher(plan, plan.launcher)
    launcher.start(0)
    address = launcher.invitation.host, launcher.invitation.port
    with Client(address) as silent, pytest.raises(AuthenticationError):
        assert silent.poll(60)
        Client(address, authkey=b"guessed")
    with Client(address, authkey=launcher.invitation.secret) as worker:
        worker.send_bytes(b'["begun", 1]')
        (process,) = launcher.begun()
        process.channel.send("end")
        assert worker.recv_bytes() == b'["end"]'
    launcher.close(lambda: False)


def test_who_says_nothing_is_sent_away_also_after_a_connection_was_not_accepted(tmp_path, monkeypatch):
    """Would catch a run that no worker reaches any more after one error, and threads that strangers hold for ever."""
    errors = [OSError(errno.EMFILE, "too many open files")]

    class Listener(socket.socket):
        def accept(self):
            if errors:
                raise errors.pop()
            return super().accept()

    def listen(address, backlog):
        listener = Listener()
        listener.bind(address)
        listener.listen(backlog)
        return listener

    class Launcher(RemoteLauncher):
        def submit(self, invitation, plan):
            self.invitation = invitation
            return SimpleNamespace()

    for name, value in (("GREETING_S", 0.1), ("ACCEPT_AGAIN_S", 0.0)):
        monkeypatch.setattr(remote, name, value)
    with monkeypatch.context() as patch:
        patch.setattr(socket, "create_server", listen)
        plan = on_this_host(plan_on("Raises", tmp_path))
    launcher = Launcher(plan, plan.launcher)
    launcher.start(0)
    with socket.create_connection((launcher.invitation.host, launcher.invitation.port), timeout=10) as stranger:
        assert stranger.recv(999)
        while stranger.recv(999):
            pass
    launcher.close(lambda: False)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["launcher.partition=gpu"], "launcher.partition: expected a setting that launcher=local has"),
        (["launcher=slurm", "launcher.sbatch=[--exclusive]"], "launcher.sbatch: expected options as name"),
        (["launcher=slurm", "launcher.num_workers=0"], "launcher.num_workers: expected 1 or more, found 0"),
        (["launcher=ray", "launcher.partition=gpu"], "launcher.partition: expected a setting that launcher=ray has"),
        (["launcher.num_workers=1,2"], "one for the whole run"),
    ],
)
def test_wrong_settings_are_found_before_anything_is_submitted(given, words):
    with pytest.raises(SettingsError, match=re.escape(words)):
        compose_plan(given)


def test_where_a_run_is_started_belongs_to_no_cell():
    """Would catch a cell that is measured again because another cluster ran it."""
    plans = [compose_plan(given) for given in ([], ["launcher=slurm", "launcher.num_workers=3"])]
    assert plans[0].cells == plans[1].cells and plans[1].launcher.num_workers == 3


@pytest.mark.parametrize(
    ("missing", "given", "words"),
    [
        ("submitit", ["launcher=slurm"], "rejection-lab[slurm]"),
        ("ray", ["launcher=ray"], "rejection-lab[ray]"),
        (None, ["launcher=slurm"], "the commands of SLURM"),
        (None, ["launcher=slurm", "--devices", "0,1"], "--devices: expected launcher=local"),
    ],
)
def test_what_is_missing_is_said_in_one_line_before_anything_is_run(
    missing, given, words, tmp_path, monkeypatch, capsys
):
    if missing is None:
        pytest.importorskip("submitit", reason="needs the extra slurm")
    monkeypatch.setitem(sys.modules, *((missing, None) if missing else ("no_such_module", None)))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command.main([*given, f"output.folder={tmp_path / 'run'}"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ") and words in error
    assert not (tmp_path / "run").exists()


def test_the_first_worker_of_a_command_begins_with_ctrl_c_blocked():
    """Would catch a worker that dies of the key that stops the run, before it has a handler of its own.

    The first start of a process brings along Python's resource tracker, which lets the signal through.
    """
    code = (
        "import signal\n"
        "from harness.runner.launchers import local_run as local\n"
        "from tests.support.signal_mask import send_mask\n"
        "local._work = send_mask\n"
        "_, mask = local.LocalProcess(None, None).channel.receive()\n"
        "print(signal.SIGINT in mask)\n"
    )
    assert output_of(code).strip() == "True"


def test_the_connection_to_ray_outlives_the_workers(tmp_path, monkeypatch):
    """Would catch workers that are ended while they end their servers, and a second Ctrl-C that is ignored."""
    called, ends = [], [([], ["task"]), (["task"], [])]
    task = SimpleNamespace(remote=lambda *arguments: "task")
    fake = SimpleNamespace(
        is_initialized=lambda: False,
        init=lambda **arguments: None,
        nodes=lambda: [],
        remote=lambda **arguments: lambda function: task,
        util=SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1"),
        wait=lambda tasks, **arguments: called.append(("wait", *tasks)) or ends.pop(0),
        shutdown=lambda: called.append(("shutdown",)),
    )
    monkeypatch.setitem(sys.modules, "ray", fake)
    for is_in_a_hurry, num_waits in ((False, 2), (True, 0)):
        launcher = Ray().launcher(plan_on("Raises", tmp_path))
        launcher.start(0)
        called.clear()
        launcher.close(lambda is_in_a_hurry=is_in_a_hurry: is_in_a_hurry)
        assert called == [("wait", "task")] * num_waits + [("shutdown",)]
