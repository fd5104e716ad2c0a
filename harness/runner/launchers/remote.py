"""Workers on other hosts: how they find the supervisor and prove to it that they belong to its run.

A job gets an invitation with the supervisor's address and a secret of this run. Both ends prove that they know the
secret; after that only JSON is sent. Results go to the run's folder, which lies on a file system of all hosts.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Thread

from harness.config.launcher import ClusterConfig
from harness.config.schema import SettingsError
from harness.runner.channel import Channel
from harness.runner.launchers.launcher import WorkerProcess
from harness.runner.lease import LEASE
from harness.runner.plan.run_plan import RunPlan
from harness.runner.worker import work

GREETING_S = 30.0
"""How long one end waits for each message of the other until both know the secret."""
ACCEPT_AGAIN_S = 0.5
"""How long no connection is accepted after an error, as where too many files are open."""


@dataclass(frozen=True)
class Invitation:
    """What a worker needs to know to join a run."""

    host: str
    port: int
    number: int
    """Of the worker."""
    here: str
    """The folder in which the command was given: paths and objects of the user's own are looked up from there."""
    secret: bytes = field(repr=False)


def join_run(invitation: Invitation, plan: RunPlan) -> None:
    """Run what the supervisor of a run sends; the body of a job.

    Raises:
        ValueError: this host does not see the run's folder, or does not reach its supervisor.
    """
    here = socket.gethostname()
    if not os.path.isdir(invitation.here) or not list(plan.folder.glob(f"{LEASE}*")):
        raise ValueError(
            f"output.folder: expected {plan.folder} and {invitation.here} on a file system that all hosts of the run "
            f"share, found another on {here}"
        )
    os.chdir(invitation.here)
    if invitation.here not in sys.path:
        sys.path.insert(0, invitation.here)
    address = invitation.host, invitation.port
    try:
        connection = _limited(socket.create_connection(address, GREETING_S))
        answer_challenge(connection, invitation.secret)
        deliver_challenge(connection, invitation.secret)
        _limit(connection, 0.0)
        channel = Channel(connection)
    except (OSError, EOFError, AuthenticationError) as error:
        raise ValueError(
            f"launcher.host: expected that {here} reaches the run at {address[0]}, port {address[1]}; it does not "
            f"({error or type(error).__name__}): the run has ended, or its host has another name or a firewall"
        ) from error
    channel.notice_lost_hosts()
    channel.send("begun", invitation.number)
    work(channel, plan, None)


def _limited(connected: socket.socket) -> Connection:
    """A connection whose messages must come within `GREETING_S`."""
    connected.settimeout(None)
    connection = Connection(connected.detach())
    _limit(connection, GREETING_S)
    return connection


def _limit(connection: Connection, limit_s: float) -> None:
    """Have receiving raise an OSError after so many seconds; never after 0."""
    with socket.socket(fileno=socket.dup(connection.fileno())) as same:
        limit = struct.pack("ll", int(limit_s), int(limit_s % 1 * 1e6))
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)


class RemoteProcess(ABC):
    """A job that runs `join_run`."""

    channel: Channel | None = None

    def stop(self) -> None:
        """One that has not begun is ended."""
        if self.channel is None:
            self.kill()
        else:
            with suppress(OSError):
                self.channel.send("stop")

    def kill(self) -> None:
        self._hang_up()
        self.cancel()

    def end(self, hurry: Callable[[], bool]) -> None:
        """Without waiting: only the cluster knows when a job has ended."""
        self._hang_up()

    def _hang_up(self) -> None:
        """Close the channel, without which a worker ends."""
        if self.channel is not None:
            self.channel.close()

    @abstractmethod
    def cancel(self) -> None:
        """Have the cluster end the job, or take it out of its queue."""

    @abstractmethod
    def has_ended(self) -> bool: ...

    @abstractmethod
    def ending(self) -> str: ...


class RemoteLauncher(ABC):
    """Starts workers as jobs of a cluster, and listens for them."""

    forgives = True

    def __init__(self, plan: RunPlan, config: ClusterConfig) -> None:
        self._host = config.host
        # one without a GPU computes on its CPU
        self.num_workers, self.devices_per_worker = config.num_workers, max(1, config.gpus_per_worker)
        self._plan = replace(plan, folder=plan.folder.resolve())
        self._secret = secrets.token_bytes(32)
        self._num_started = 0
        self._waiting: dict[int, RemoteProcess] = {}
        self._arrived: SimpleQueue[tuple[int, Channel]] = SimpleQueue()
        self._is_closed = Event()
        self._bell, self._push = socket.socketpair()
        self.doors: Sequence[int] = (self._bell.fileno(),)
        try:
            # all addresses of this host, unless one is named
            self._listener = socket.create_server((config.host or "", 0), backlog=64)
        except OSError as error:
            raise SettingsError(
                f"launcher.host: expected a name or address of this host, found {config.host!r} ({error})"
            ) from error
        Thread(target=self._listen, daemon=True).start()

    def host_name(self) -> str:
        """What jobs know this host by unless the user names it."""
        return socket.gethostname()

    @abstractmethod
    def submit(self, invitation: Invitation, plan: RunPlan) -> RemoteProcess:
        """Start a job that runs `join_run` with these arguments."""

    def start(self, place: int) -> WorkerProcess:
        self._num_started += 1
        host = self._host or self.host_name()
        port = int(self._listener.getsockname()[1])
        invitation = Invitation(host, port, self._num_started, os.getcwd(), self._secret)
        process = self.submit(invitation, self._plan)
        self._waiting[self._num_started] = process
        return process

    def begun(self) -> Sequence[WorkerProcess]:
        self._bell.recv(1)
        number, channel = self._arrived.get()
        process = self._waiting.pop(number, None)
        if process is None:
            # a job that the cluster has started again by itself
            channel.close()
            return ()
        process.channel = channel
        return (process,)

    def close(self, hurry: Callable[[], bool]) -> None:
        self._is_closed.set()
        with suppress(OSError):
            # wakes who waits in accept
            self._listener.shutdown(socket.SHUT_RDWR)
        for end in (self._listener, self._bell, self._push):
            end.close()
        with suppress(Empty):
            while True:
                _, channel = self._arrived.get_nowait()
                channel.close()

    def _listen(self) -> None:
        while True:
            try:
                found, _ = self._listener.accept()
            except OSError:
                if self._is_closed.wait(ACCEPT_AGAIN_S):
                    return
                continue
            Thread(target=self._greet, args=(_limited(found),), daemon=True).start()

    def _greet(self, connection: Connection) -> None:
        """Let in who knows the secret; who does not, or says nothing, holds up only this thread."""
        try:
            deliver_challenge(connection, self._secret)
            answer_challenge(connection, self._secret)
            channel = Channel(connection)
            channel.notice_lost_hosts()
            _, (number,) = channel.receive()
            _limit(connection, 0.0)
            self._arrived.put((number, channel))
            self._push.send(b"!")
        except (OSError, EOFError, ValueError, AuthenticationError):
            # a stranger, or the run is over
            connection.close()


def worker_folder(plan: RunPlan) -> Path:
    """The folder of the files that a cluster's jobs need and leave; for the user alone, since invitations are there."""
    folder = plan.folder / "workers"
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    return folder
