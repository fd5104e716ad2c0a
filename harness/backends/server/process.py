"""Starts and stops servers as child processes: so many at a time, logs kept, a health check before one is used."""

from __future__ import annotations

import ctypes
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from harness.backends.server.get import NoAnswer, get

POLL_S = 0.1
STOP_TIMEOUT_S = 30.0
LOG_TAIL = 5
"""Lines of a log that a message shows."""
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Launch:
    """How a server is started; equal for arms that one server serves."""

    arguments: tuple[str, ...]
    """With {port} and {config} still open."""
    environment: tuple[tuple[str, str], ...] = ()
    config: str = ""
    """Text of the file {config}."""


def launch_of(
    command: str,
    values: Mapping[str, str],
    several: Mapping[str, tuple[str, ...]],
    environment: Mapping[str, str],
    config: str,
) -> Launch:
    """Fill in a command line.

    Args:
        command: with names in braces.
        values: name -> text.
        several: name -> what a whole word of that name stands for, any number of arguments.
        environment, config: see Launch.

    Raises:
        ValueError: the command cannot be split into arguments.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ValueError(f"server.command: expected a command line, found {command!r} ({error})") from error
    later = {"port": "{port}", "config": "{config}"}
    arguments: list[str] = []
    for word in words:
        if word[1:-1] in several and word == f"{{{word[1:-1]}}}":
            arguments += several[word[1:-1]]
            continue
        filled = word
        for name, text in {**values, **later}.items():
            filled = filled.replace(f"{{{name}}}", text)
        arguments.append(filled)
    if not arguments:
        raise ValueError("server.command: expected a command line, found nothing")
    return Launch(tuple(arguments), tuple(sorted(environment.items())), config)


@dataclass
class _Running:
    """A server that runs."""

    launch: Launch
    process: subprocess.Popen[bytes]
    url: str
    log: Path


@dataclass
class Servers:
    """The servers of a run that starts its own: those of other arms make room where one needs another command."""

    deaths: dict[Launch, list[str]] = field(default_factory=dict)
    """What was noticed about servers that ended by themselves."""
    _running: list[_Running] = field(default_factory=list)
    """The one that was asked for last is the last."""

    def __post_init__(self) -> None:
        # also when Python ends
        weakref.finalize(self, _stop_all, self._running)

    def url(self, launch: Launch, health_path: str, timeout_s: float, log_folder: Path, max_running: int = 1) -> str:
        """The address of a healthy server of this launch, started if it does not run.

        Args:
            launch: how it is started.
            health_path: what a healthy one answers.
            timeout_s: how long it may take until it does.
            log_folder: for what it prints.
            max_running: servers that may run at the same time; the one that was not asked for longest is stopped.

        Raises:
            ValueError: it ended, or did not get healthy in time; the message holds the end of its log.
        """
        running = next((item for item in self._running if item.launch == launch), None)
        if running is not None:
            self._running.remove(running)
            self._running.append(running)
            status = running.process.poll()
            if status is None:
                # one whose engine has died may live on without it
                with suppress(NoAnswer):
                    get(running.url + health_path)
                    return running.url
            fault = "was no longer healthy" if status is None else f"ended by itself with status {status}"
            told = f"the server {fault} and was started again; its log is {running.log}"
            self.deaths.setdefault(launch, []).append(told)
            _stop(self._running, -1)
        while len(self._running) >= max_running:
            _stop(self._running, 0)
        self._running.append(_start(launch, log_folder))
        try:
            _wait(self._running[-1], health_path, timeout_s)
        except ValueError:
            _stop(self._running, -1)
            raise
        return self._running[-1].url

    @property
    def log(self) -> str:
        """What the server that was asked for last has printed so far."""
        return self._running[-1].log.read_text(errors="replace")

    def stop(self) -> None:
        """Stop what runs."""
        _stop_all(self._running)


def _start(launch: Launch, log_folder: Path) -> _Running:
    port = _free_port()
    log_folder.mkdir(parents=True, exist_ok=True)
    stem = datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")
    descriptor, name = tempfile.mkstemp(".log", f"{stem}-", log_folder)
    config = Path(name).with_suffix(".config")
    if launch.config:
        config.write_text(launch.config)
    arguments = [item.replace("{port}", str(port)).replace("{config}", str(config)) for item in launch.arguments]
    with os.fdopen(descriptor, "wb") as log:
        log.write(f"{shlex.join(arguments)}\n".encode())
        log.flush()
        try:
            process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **dict(launch.environment)},
                start_new_session=True,
                preexec_fn=_end_with_parent,  # noqa: PLW1509 - it takes no lock
            )
        except OSError as error:
            raise ValueError(
                f"server.command: expected a program that starts, found {error}; install the engine, or name the "
                "program with its folder in server.command"
            ) from error
    return _Running(launch, process, f"http://127.0.0.1:{port}", Path(name))


def _end_with_parent() -> None:
    """Have Linux end this process when the one that started it is killed; elsewhere it would go on."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _wait(running: _Running, health_path: str, timeout_s: float) -> None:
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        status = running.process.poll()
        if status is not None:
            end_of_log = _tail(running)
            lacks = "No module named" in end_of_log
            hint = "; install the engine for the interpreter that runs (server.environment)" if lacks else ""
            raise ValueError(
                f"server.command: expected a server, found that it ended with status {status}{hint}; {end_of_log}"
            )
        with suppress(NoAnswer):
            get(running.url + health_path)
            return
        time.sleep(POLL_S)
    raise ValueError(f"server.start_timeout_s: expected an answer within {timeout_s:g} s, found none; {_tail(running)}")


def _tail(running: _Running) -> str:
    lines = [line for line in running.log.read_text(errors="replace").splitlines() if line.strip()]
    return f"the end of {running.log}: {' | '.join(lines[-LOG_TAIL:])}"


def _stop_all(running: list[_Running]) -> None:
    while running:
        _stop(running, -1)


def _stop(running: list[_Running], place: int) -> None:
    """End a process with all that it started; the strong way where it takes too long.

    It is listed until it has ended, so that a stop of the run that comes meanwhile leaves it to the run's end.
    """
    process = running[place].process
    for number, timeout_s in ((signal.SIGTERM, STOP_TIMEOUT_S), (signal.SIGKILL, STOP_TIMEOUT_S)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout_s)
            break
    # what it started may outlive it
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    del running[place]


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
