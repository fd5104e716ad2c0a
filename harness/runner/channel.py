"""Messages between the supervisor and a worker: lists of plain values as JSON, so that a peer can send nothing else."""

from __future__ import annotations

import json
import socket
from multiprocessing.connection import Connection
from typing import Any


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
