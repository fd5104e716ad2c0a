"""A lease on the folder of a run: one process works in it at a time, and one that has died keeps nothing locked.

The file lease.N names its holder and holds a counter, which the holder moves every BEAT_S. A lease is stale when its
process has ended on this host, or when its counter has not moved for STALE_S; who finds that creates lease.N+1, which
the file system lets one of several do. No clocks are compared and no locks are used, which NFS may lack.
This module does not know what is done in the folder.
"""

from __future__ import annotations

import _thread
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from harness.config.cli.command_line import say
from harness.config.schema import SettingsError
from harness.records.process_name import ProcessName
from harness.records.strict_json import parse_json, typed

BEAT_S = 10.0
STALE_S = 60.0
LEASE = "lease."
_POLL_S = 1.0
_held_here: set[Path] = set()
"""The leases of this process that it has not given back."""


@contextmanager
def leased(folder: Path) -> Iterator[None]:
    """Hold the lease on a folder.

    Raises:
        SettingsError: another process holds it; the message names its host and pid.
    """
    path = _taken(folder)
    _held_here.add(path.resolve())
    ended = threading.Event()
    threading.Thread(target=_beat, args=(path, ended), daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        _held_here.discard(path.resolve())
        # a folder that became unwritable keeps the file, which holds nothing any more
        with suppress(OSError):
            path.unlink()


def _taken(folder: Path) -> Path:
    """Take the lease, once no other process holds it."""
    while True:
        newest = _newest(folder)
        if newest is not None and _is_held(newest):
            continue
        number = 1 if newest is None else _number(newest) + 1
        path = folder / f"{LEASE}{number}"
        try:
            with open(path, "xb") as stream:
                stream.write(_content(0))
        except FileExistsError:
            # another process was faster
            continue
        for older in folder.glob(f"{LEASE}*"):
            if _number(older) < number:
                older.unlink(missing_ok=True)
        return path


def _newest(folder: Path) -> Path | None:
    return max(folder.glob(f"{LEASE}*"), key=_number, default=None)


def _number(path: Path) -> int:
    text = path.name.removeprefix(LEASE)
    return int(text) if text.isdecimal() else 0


def _is_held(path: Path) -> bool:
    """Whether the lease was given back just now, so that it must be looked for again; False if it is stale.

    Raises:
        SettingsError: its process is alive.
    """
    content = _read(path)
    if content is None:
        return True
    holder = _holder(content)
    is_alive = None if holder is None else holder.is_alive
    if is_alive is not None:
        if not is_alive or (holder == ProcessName.here() and path.resolve() not in _held_here):
            return False
        raise _refusal(path.parent, holder)
    who = "another process" if holder is None else f"pid {holder.pid} on {holder.host}"
    say(f"{who} worked in {path.parent}; waiting up to {STALE_S:.0f} s to see whether it still does")
    began_s = time.monotonic()
    while time.monotonic() - began_s < STALE_S:
        time.sleep(_POLL_S)
        now = _read(path)
        if now is None:
            return True
        if now != content:
            raise _refusal(path.parent, _holder(now))
    return False


def _refusal(folder: Path, holder: ProcessName | None) -> SettingsError:
    who = "another process" if holder is None else f"pid {holder.pid} on host {holder.host}"
    return SettingsError(
        f"output.folder: expected a folder that no other run works in, found {who} at work in {folder}; wait for it, "
        "end it, or give this run a name of its own (name=...)"
    )


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _holder(content: bytes) -> ProcessName | None:
    """Who a lease names; None while that is being written."""
    try:
        found = typed(Mapping[str, Any], parse_json(content))
        holder: ProcessName = typed(ProcessName, {item.name: found.get(item.name) for item in fields(ProcessName)})
    except ValueError:
        return None
    return holder


def _content(num_beats: int) -> bytes:
    return json.dumps({**asdict(ProcessName.here()), "beats": f"{num_beats:012}"}).encode()


def _beat(path: Path, ended: threading.Event) -> None:
    """Move the counter until the work has ended; interrupt it if another process has taken the lease."""
    num_beats = 0
    while not ended.wait(BEAT_S):
        num_beats += 1
        try:
            is_lost = _newest(path.parent) != path
            if not is_lost:
                with open(path, "r+b") as stream:
                    stream.write(_content(num_beats))
        except FileNotFoundError:
            is_lost = True
        except OSError:
            # the file system does not answer; who takes over meanwhile is seen when it does
            continue
        if is_lost and not ended.is_set():
            say(f"another run has taken over {path.parent}, since this one stood still: it ends here")
            _thread.interrupt_main()
            return
