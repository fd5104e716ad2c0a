"""Sends one request and reads its stream, again where the server was busy or gave no answer; knows no cell and no
engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from harness.backends.server.reply import (
    ClosedUnanswered,
    ConnectionLost,
    NoConnection,
    Overloaded,
    Reply,
    RequestFailed,
    RequestRefused,
    Stalled,
    error_text,
)

BUSY = (429, 503)
LONGEST_LINE = 2**24
"""Bytes of an event: the prompt's tokens and the steps of a long answer come in one."""
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
CONNECT_TIMEOUT_S = 10.0


@dataclass
class Connections:
    """To one server."""

    kept: aiohttp.ClientSession
    """Each of its connections serves one request after another."""
    fresh: aiohttp.ClientSession
    """Every request has one of its own."""
    are_kept: bool = True
    """Until the server closes one that it had announced to keep."""

    @property
    def session(self) -> aiohttp.ClientSession:
        return self.kept if self.are_kept else self.fresh


@dataclass
class Client:
    """Asks one server."""

    connections: Connections
    url: str
    """Of the endpoint that is asked."""
    clock: Callable[[], float]
    """Seconds on the clock of the records."""
    num_retries: int
    stall_timeout_s: float
    new_reply: Callable[[], Reply] = Reply
    """Reads the server's stream of events."""
    num_retried: int = 0
    """Requests sent again so far."""

    async def ask(self, body: Mapping[str, Any]) -> Reply:
        """Send a request until it is answered, or has failed.

        Raises:
            RequestFailed: it failed for good. An answer that has begun is never asked for again.
        """
        for attempt in range(self.num_retries + 1):
            try:
                return await self._stream(body)
            except (Overloaded, NoConnection, ClosedUnanswered) as error:
                asked = error.retry_after_s if isinstance(error, Overloaded) else None
                if isinstance(error, ClosedUnanswered) and self.connections.are_kept:
                    self.connections.are_kept, asked = False, 0.0
                if attempt == self.num_retries:
                    raise
                pause_s = FIRST_PAUSE_S * 2**attempt if asked is None else asked
                self.num_retried += 1
                await asyncio.sleep(min(pause_s, LONGEST_PAUSE_S))
        raise AssertionError("the last attempt returns or raises")

    async def _stream(self, body: Mapping[str, Any]) -> Reply:
        reply, has_begun = self.new_reply(), False
        try:
            async with self.connections.session.post(self.url, json=body) as response:
                has_begun = True
                if response.status in BUSY:
                    raise Overloaded(response.status, _seconds(response.headers.get("Retry-After")))
                if response.status != 200:
                    text = error_text(await response.read())
                    raise RequestRefused(f"the server answered with status {response.status}: {text}")
                async for line in response.content:
                    reply.take_line(line, self.clock())
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise NoConnection("no connection to the server could be had, as often as it was tried") from error
        except TimeoutError as error:
            raise Stalled(f"nothing came from the server for {self.stall_timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            if not has_begun:
                raise ClosedUnanswered(
                    "the server closed the connection before it answered, as often as it was asked"
                ) from error
            if not reply.is_done:
                raise ConnectionLost("the server closed the connection before the end of its answer") from error
        if not reply.is_done and reply.finish_reason is None:
            raise ConnectionLost("the stream ended before the answer did")
        return reply


@asynccontextmanager
async def connected(stall_timeout_s: float, *, are_kept: bool) -> AsyncIterator[Connections]:
    """Connections without a limit on their number; to be entered within a running event loop.

    Args:
        stall_timeout_s: time without anything from the server after which a request has failed.
        are_kept: whether the server keeps a connection after an answer.
    """
    async with _session(stall_timeout_s, is_kept=True) as kept, _session(stall_timeout_s, is_kept=False) as fresh:
        yield Connections(kept, fresh, are_kept)


def _session(stall_timeout_s: float, *, is_kept: bool) -> aiohttp.ClientSession:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=stall_timeout_s)
    connector = aiohttp.TCPConnector(limit=0, force_close=not is_kept)
    return aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=LONGEST_LINE, trust_env=False)


def _seconds(header: str | None) -> float | None:
    """What Retry-After asks for, in seconds; None where it names a date or nothing."""
    return float(header) if header is not None and header.isdigit() else None


__all__ = ["Client", "RequestFailed", "connected"]
