"""Servers that a run starts by itself: one per command line, stopped at the end, started anew after a death."""

import os
import re
import select
import shlex
import subprocess
import sys
from dataclasses import replace

import pytest

from harness.backends.server import process
from harness.backends.server.process import Launch, Servers, launch_of
from harness.backends.server.vllm_cpu.start import MENDED
from harness.config.drafter import drafter_of
from harness.config.server import Engine, server_of
from harness.runner.plan.run_plan import with_baselines
from kernels.methods import VerificationMethod
from kernels.verification import Verification
from tests.support.scripted_server import ScriptedServer
from tests.support.server_cells import DEPTH, cell_on, run_on

COMMAND = "{python} -m tests.support.scripted_server --port {port}"


def started(tmp_path, options="", num_requests=6, **settings):
    """A cell that starts a scripted server."""
    server = server_of(
        Engine.vllm,
        command=f"{COMMAND} {options} {{speculation}} {{details}}",
        environment=sys.prefix,
        num_retries=0,
        start_timeout_s=120.0,
        log_folder=str(tmp_path / "logs"),
    )
    return replace(cell_on(ScriptedServer(port=1), num_requests=num_requests), server=server, **settings)


def logs(tmp_path):
    return [path.read_text() for path in sorted((tmp_path / "logs").glob("*.log"))]


def is_alive(log):
    try:
        os.kill(int(re.search(r"^pid (\d+)$", log, re.MULTILINE)[1]), 0)
    except ProcessLookupError:
        return False
    return True


STUBBORN = """
import http.server, os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("pid", os.getpid(), flush=True)
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""
"""A server that is ended by SIGKILL alone."""


def test_a_server_that_was_being_ended_when_the_run_was_stopped_is_ended(tmp_path, monkeypatch):
    """Would catch a server that hangs while it ends, and keeps its GPU memory after Ctrl-C."""
    servers, waits = Servers(), []
    monkeypatch.setattr(process, "STOP_TIMEOUT_S", 0.1)
    wait = subprocess.Popen.wait

    def stopped_at_first(self, timeout=None):
        waits.append(timeout)
        if len(waits) == 1:
            raise KeyboardInterrupt
        return wait(self, timeout)

    launches = [Launch((sys.executable, "-c", STUBBORN, "{port}", name)) for name in "ab"]
    servers.url(launches[0], "/health", 60.0, tmp_path / "logs")
    monkeypatch.setattr(subprocess.Popen, "wait", stopped_at_first)
    with pytest.raises(KeyboardInterrupt):
        servers.url(launches[1], "/health", 60.0, tmp_path / "logs")
    (log,) = logs(tmp_path)
    assert is_alive(log)
    servers.stop()
    assert not is_alive(log)


def test_arms_take_turns_on_servers_of_their_own(tmp_path):
    """Would catch a baseline on a server that drafts, a server for every block of one arm, and one that is left."""
    records, frame = run_on(tmp_path, *with_baselines([started(tmp_path)]))
    assert not any(record.failures for record in records) and [len(item.requests) for item in records] == [6, 6]
    assert list(frame["num_draft_tokens"] > 0) == [False, True]
    found = logs(tmp_path)
    # A B, then B A: B keeps its server
    assert [("speculative-config" in text) for text in found] == [False, True, False]
    assert not any(map(is_alive, found))
    config = re.search(r"--speculative-config '(.*)'", found[1])[1]
    assert '"method":"eagle3"' in config and f'"num_speculative_tokens":{DEPTH}' in config


def test_a_death_is_told_of_the_arms_of_that_server_alone(tmp_path):
    """Would catch a baseline that passes for measured on a server that died."""
    cell = started(tmp_path)
    command = cell.server.command.replace("{speculation}", "{speculation} --killed-at 2")
    dying = replace(cell, server=replace(cell.server, command=command, max_running=2))
    baseline = replace(dying, drafter=drafter_of("none"), server=replace(cell.server, max_running=2))
    records, _ = run_on(tmp_path, baseline, dying)
    assert [any("ended by itself" in text for text in item.fallbacks) for item in records] == [False, True]
    assert [bool(item.failures) for item in records] == [False, True]


@pytest.mark.parametrize(
    ("dies", "told"),
    [("--killed-at 5", "ended by itself with status -9"), ("--closes-at 5", "was no longer healthy")],
    ids=["kill -9", "the process lives on"],
)
def test_a_server_that_dies_costs_its_block_and_nothing_else(tmp_path, dies, told):
    """Would catch finished blocks that are lost, a death that is hidden, and a dead server that is asked again."""
    cell = started(tmp_path, dies, num_requests=16)
    cell = replace(cell, measurement=replace(cell.measurement, num_blocks=4))
    (record,), frame = run_on(tmp_path, cell)
    assert [block.num_requests for block in record.blocks] == [4, 0, 4, 0]
    assert len(record.failures) == 8 and all(item.request is not None for item in record.failures)
    assert {item.error for item in record.failures} <= {"ClosedUnanswered", "ConnectionLost", "NoConnection"}
    assert any(told in text for text in record.fallbacks)
    assert frame.iloc[0]["labels"] == "8 requests failed"


CPU = "WARNING [vllm.py:725] Model Runner V2 requires Triton; using the V1 model runner instead."


@pytest.mark.parametrize("says", ["ready", "WARNING Model Runner V2 does not yet support mamba; using the V1", CPU])
def test_block_runs_on_runner_v2_alone(tmp_path, says):
    """Would catch standard verification that is measured under the name of block."""
    block = Verification(VerificationMethod.block)
    (record,), _ = run_on(tmp_path, started(tmp_path, f"--says {shlex.quote(says)}", verification=block))
    if says == "ready":
        assert not record.failures and '"rejection_sample_method":"block"' in logs(tmp_path)[0]
    else:
        assert record.failures[0].error == "RefusedArm" and says in record.failures[0].message


@pytest.mark.parametrize("mended", ["", MENDED])
def test_sampling_is_refused_where_the_engine_is_known_to_be_broken(tmp_path, mended):
    """Would catch numbers from uninitialised memory, and a mended server that is taken for one as shipped."""
    says = shlex.quote(f"{mended}\n{CPU}")
    (record,), _ = run_on(tmp_path, started(tmp_path, f"--format vllm_0.32 --says {says}"))
    if mended:
        assert not record.failures and any("55006" in note for note in record.fallbacks)
    else:
        assert record.failures[0].error == "RefusedArm" and "uninitialised memory" in record.failures[0].message


@pytest.mark.parametrize(("format_", "says"), [("vllm_0.32", CPU), ("vllm_0.32", "ready"), ("vllm_0.33", CPU)])
def test_synthetic_is_refused_where_it_ends_the_engine(tmp_path, format_, says):
    """Would catch an engine that dies at the first request of an arm, and a refusal where the method runs."""
    synthetic = Verification(VerificationMethod.synthetic, rates=[0.8, 0.6, 0.4])
    given = f"--format {format_} --says {shlex.quote(says)}"
    (record,), _ = run_on(tmp_path, started(tmp_path, given, verification=synthetic))
    if (format_, says) == ("vllm_0.32", CPU):
        assert record.failures[0].error == "RefusedArm" and "not supported with CPU" in record.failures[0].message
    else:
        assert not record.failures


def test_a_server_that_does_not_start_says_why(tmp_path):
    cell = started(tmp_path)
    server = replace(cell.server, command=f"{shlex.quote(sys.executable)} -c 'raise SystemExit(\"no such model\")'")
    (record,), _ = run_on(tmp_path, replace(cell, server=server))
    assert not record.requests and "ended with status 1" in record.failures[0].message
    assert "no such model" in record.failures[0].message


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"command": "{python} -m no_such_engine"}, "install the engine for .* No module named no_such_engine"),
        ({"command": "no-such-engine"}, "install the engine"),
        ({"environment": "no_such_folder"}, "server.environment: .* no bin/python in no_such_folder"),
        ({"command": None, "url": "http://127.0.0.1:1/v1/"}, "server.url: .* leave /v1 off"),
    ],
)
def test_a_server_that_cannot_be_had_says_what_to_do(tmp_path, changes, says):
    cell = started(tmp_path)
    (record,), _ = run_on(tmp_path, replace(cell, server=replace(cell.server, **changes)))
    assert not record.requests and re.search(says, record.failures[0].message)


def test_a_server_that_is_late_is_not_left(tmp_path):
    """Would catch a server without a health check that holds the GPU, or is taken for a healthy one later."""
    servers = Servers()
    for _ in range(2):
        with pytest.raises(ValueError, match=r"server\.start_timeout_s"):
            servers.url(Launch(("sleep", "60")), "/health", 0.0, tmp_path)
    assert len(list(tmp_path.glob("*.log"))) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends what a killed process started")
def test_a_server_ends_with_a_process_that_is_killed(tmp_path):
    """Would catch a server that a worker killed for stalling leaves on the GPU."""
    run = f"""if True:
        import os, signal, sys
        from pathlib import Path
        from harness.backends.server.process import Launch, Servers
        servers = Servers()
        launch = Launch((sys.executable, "-m", "tests.support.scripted_server", "--port", "{{port}}"))
        servers.url(launch, "/health", 60.0, Path({str(tmp_path)!r}))
        print(servers.log, flush=True)
        sys.stdin.readline()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    with subprocess.Popen([sys.executable, "-c", run], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        pid = next(int(line.split()[1]) for line in process.stdout if line.startswith(b"pid "))
        server = os.pidfd_open(pid)
        process.communicate(b"\n")
    assert select.select([server], [], [], 30.0)[0]
    os.close(server)


def test_a_command_line_is_filled_in():
    several = {"speculation": ("--k", "{}"), "details": ()}
    launch = launch_of(
        "serve {target} '{a b}' {speculation} {details}", {"target": "my model"}, several, {"B": "1"}, ""
    )
    assert launch.arguments == ("serve", "my model", "{a b}", "--k", "{}") and launch.environment == (("B", "1"),)
    with pytest.raises(ValueError, match=r"server\.command: expected a command line, found \"'\""):
        launch_of("'", {}, {}, {}, "")
