"""A process as files of a run name it, and whether it still runs; one answer for everyone who asks."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from harness.records.strict_json import Int64


@dataclass(frozen=True)
class ProcessName:
    """A process of some host."""

    host: str
    pid: Int64
    pids: str
    """The container in which the pid has a meaning; empty where the system has none."""
    started: str | None
    """When it began, in the system's ticks, since a pid is given again; None where that is unknown, or it has ended."""

    @classmethod
    def here(cls, pid: int | None = None) -> ProcessName:
        """A process of this host; None is this one."""
        pid, started = os.getpid() if pid is None else pid, None
        with suppress(OSError):
            # the third field and the 22nd, behind a name that may hold anything
            after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            # a zombie has ended; in a container whose first process collects none, it stays for good
            started = None if after_name[0] in "ZX" else after_name[19]
        if started is None and not Path("/proc/self/stat").is_file():
            try:
                os.kill(pid, 0)
                started = "alive"
            except PermissionError:
                started = "alive"
            except OSError:
                pass
        pids = os.readlink("/proc/self/ns/pid") if os.path.islink("/proc/self/ns/pid") else ""
        return cls(platform.node(), pid, pids, started)

    @property
    def is_alive(self) -> bool | None:
        """Whether it runs; None where that cannot be asked: on another host or in another container."""
        found = ProcessName.here(self.pid)
        if self.started is None or (self.host, self.pids) != (found.host, found.pids):
            return None
        return found == self
