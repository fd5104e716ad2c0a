"""Messages between the supervisor and a worker: lists of plain values as JSON, so that a peer can send nothing else.

The first value is the name. The supervisor sends `run`, `stop` and `end`; what a worker sends is listed in
`harness.runner.worker.work`.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

from harness.config.identity import plain_values
from harness.config.schema import SettingsError
from harness.records.schema import Failure
from harness.runner.progress import Progress


class Channel:
    """One end of a connection; `multiprocessing.connection.wait` takes it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def fileno(self) -> int:
        """Of the connection."""
        return self._connection.fileno()

    def send(self, name: str, *values: Any) -> None:
        """Send a message; OSError if the other end is closed."""
        # what a backend of the user's own counts may be numbers of NumPy
        self._connection.send_bytes(json.dumps([name, *values], default=int).encode())

    def receive(self) -> tuple[str, list[Any]]:
        """Wait for the next message; EOFError or OSError if there is none any more."""
        name, *values = json.loads(self._connection.recv_bytes())
        return name, values

    def close(self) -> None:
        """The other end gets EOFError."""
        self._connection.close()

    def notice_lost_hosts(self) -> None:
        """Of TCP: find out within minutes that the other host has vanished without closing the connection."""
        with socket.socket(fileno=socket.dup(self.fileno())) as same:
            same.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 20), ("TCP_KEEPCNT", 6)):
                # macOS lacks one of them
                if hasattr(socket, name):
                    same.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Stopped(BaseException):
    """The supervisor or a signal wants this process to end."""


@dataclass
class Reports(Progress):
    """Sends what a display and the supervisor want to know, and raises `Stopped` between rounds once asked to."""

    channel: Channel
    is_loading: bool = True
    """Whether no round of the turn under way has ended, so that there is nothing to be kept."""
    is_stopping: bool = False
    has_stopped: bool = False
    """Whether only servers are left to be ended."""

    def stop(self, number: int, frame: FrameType | None) -> None:
        """The handler of signals."""
        is_first, self.is_stopping = not self.is_stopping, True
        if is_first and self.is_loading:
            raise Stopped

    def stopped(self) -> None:
        """The process is about to end; the supervisor closes the channel once it has heard so."""
        self.has_stopped = True
        self.channel.send("stopped")

    def at_stake(self, places: Sequence[int]) -> None:
        self._send("at_stake", places)
        self._end_if_asked()

    def finished(self, place: int, cell_id: str, has_failed: bool) -> None:
        """The record of a cell is there."""
        self._send("finished", place, cell_id, has_failed)

    def cell(self, label: str, index: int, num_cells: int) -> None:
        self.is_loading = True
        self._send("cell", label, index, num_cells)

    def advance(self, num_requests: int = 1, num_tokens: int = 0) -> None:
        self._send("advance", num_requests, num_tokens)
        self.round_ended()

    def kept(self) -> None:
        self._send("kept")

    def done_before(self, num_requests: int) -> None:
        self._send("done_before", num_requests)

    def leave_out(self, num_requests: int) -> None:
        self._send("leave_out", num_requests)

    def note(self, text: str) -> None:
        self._send("note", text)

    def ready(self, text: str) -> None:
        self._send("ready", text)

    def _send(self, name: str, *values: Any) -> None:
        try:
            self.channel.send(name, *values)
        except OSError as error:
            # no fault of the cell that is under way
            raise Stopped from error

    def round_ended(self) -> None:
        self.is_loading = False
        self._end_if_asked()

    def _end_if_asked(self) -> None:
        if self.is_stopping:
            raise Stopped


def told_failures(told: Sequence[tuple[int, dict[str, Any]]]) -> dict[int, Failure]:
    """The failures of a message by place."""
    return {place: failure_told(values) for place, values in told}


def error_told(text: str, trace: str, is_about_settings: bool = False) -> ValueError:
    """An error of a worker that ends the run, with the worker's traceback."""
    error = (SettingsError if is_about_settings else ValueError)(text)
    error.add_note(trace)
    return error


def failure_message(failure: Failure) -> dict[str, Any]:
    """A failure as plain values."""
    plain: dict[str, Any] = plain_values(asdict(failure))
    return plain


def failure_told(values: dict[str, Any]) -> Failure:
    """The failure of a `failure_message`."""
    request = values["request"]
    return Failure(**values | {"request": None if request is None else tuple(request)})
