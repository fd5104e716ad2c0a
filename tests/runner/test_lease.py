"""One process works in a folder at a time: who holds the lease, and when it is stale."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace

import pytest

from harness.config.schema import SettingsError
from harness.records.process_name import ProcessName
from harness.runner import lease
from harness.runner.lease import leased
from tests.support.own_process import ROOT


@pytest.fixture
def other(tmp_path):
    """A process that holds the lease."""
    code = "import sys; from pathlib import Path; from harness.runner.lease import leased\n"
    code += "with leased(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_folder_in_use_is_refused_with_host_and_pid(tmp_path, other):
    with pytest.raises(SettingsError, match=f"found pid {other.pid} on host "), leased(tmp_path):
        pass
    other.stdin.close()
    other.wait()
    with leased(tmp_path):
        pass
    assert not list(tmp_path.iterdir())


def test_a_killed_process_keeps_nothing_locked(tmp_path, other):
    """Would catch a lock that outlives its holder."""
    other.kill()
    other.wait()
    with leased(tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == ["lease.2"]


def test_a_zombie_keeps_nothing_locked(tmp_path, other):
    """Would catch a run that is at work for ever in a container whose first process collects no ended children."""
    other.kill()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    with leased(tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == ["lease.2"]


def on_another_host(path):
    """As if the lease there had been taken on another host."""
    path.write_text(json.dumps({**json.loads(path.read_text()), "host": "elsewhere", "pid": 7}))


@pytest.mark.parametrize("beats", [True, False], ids=["its counter moves", "its counter stands"])
def test_on_another_host_the_counter_decides(beats, tmp_path, monkeypatch, capsys):
    """Would catch a pid of another host that is looked for here, and clocks of two hosts that are compared."""
    now = [0.0]

    def wait(seconds):
        now[0] += seconds
        if beats and now[0] == 5:
            path.write_bytes(path.read_bytes().replace(b'"beats": "0', b'"beats": "1'))

    with leased(tmp_path):
        path = tmp_path / "lease.1"
        on_another_host(path)
        monkeypatch.setattr(lease.time, "sleep", wait)
        monkeypatch.setattr(lease.time, "monotonic", lambda: now[0])
        if beats:
            with pytest.raises(SettingsError, match="found pid 7 on host elsewhere"), leased(tmp_path):
                pass
        else:
            with leased(tmp_path):
                assert now[0] == lease.STALE_S and [each.name for each in tmp_path.iterdir()] == ["lease.2"]
    assert "waiting up to 60 s" in capsys.readouterr().err


def test_a_pid_that_was_given_again_is_another_process(tmp_path):
    """Would catch a folder that stays locked because some later process has the pid of the holder."""
    holder = replace(ProcessName.here(), started="0")
    (tmp_path / "lease.3").write_text(json.dumps(asdict(holder)))
    with leased(tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == ["lease.4"]


def test_a_process_that_stood_still_ends_when_another_took_over(tmp_path, monkeypatch):
    """Would catch two processes that write the same cells."""
    monkeypatch.setattr(lease, "BEAT_S", 0.001)
    # a shell script's background processes ignore SIGINT, as a sweep does not while it runs
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), leased(tmp_path):
            (tmp_path / "lease.2").write_text("{}")
            while True:
                pass
    finally:
        signal.signal(signal.SIGINT, before)
