"""Sends one request and reads its stream, again where the server was busy; knows no cell and no engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from harness.backends.server.reply import (
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
class Client:
    """Asks one server."""

    session: aiohttp.ClientSession
    url: str
    """Of the endpoint that is asked."""
    clock: Callable[[], float]
    """Seconds on the clock of the records."""
    num_retries: int
    stall_timeout_s: float
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
            except (Overloaded, NoConnection) as error:
                if attempt == self.num_retries:
                    raise
                asked = error.retry_after_s if isinstance(error, Overloaded) else None
                pause_s = FIRST_PAUSE_S * 2**attempt if asked is None else asked
                self.num_retried += 1
                await asyncio.sleep(min(pause_s, LONGEST_PAUSE_S))
        raise AssertionError("the last attempt returns or raises")

    async def _stream(self, body: Mapping[str, Any]) -> Reply:
        reply = Reply()
        try:
            async with self.session.post(self.url, json=body) as response:
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
            if not reply.is_done:
                raise ConnectionLost("the server closed the connection before the end of its answer") from error
        if not reply.is_done and reply.finish_reason is None:
            raise ConnectionLost("the stream ended before the answer did")
        return reply


def open_session(stall_timeout_s: float) -> aiohttp.ClientSession:
    """A session without a limit on connections; to be opened within a running event loop."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=stall_timeout_s)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=timeout, read_bufsize=LONGEST_LINE, trust_env=False
    )


def _seconds(header: str | None) -> float | None:
    """What Retry-After asks for, in seconds; None where it names a date or nothing."""
    return float(header) if header is not None and header.isdigit() else None


__all__ = ["Client", "RequestFailed", "open_session"]
