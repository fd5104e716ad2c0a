"""How far a run is, for another shell: one small file in its folder, written while it goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from harness.records.files import write_atomically
from harness.records.process_name import ProcessName
from harness.records.strict_json import Int64, parse_json, shown, typed

STATUS = "status.json"
RUNNING, DONE, STOPPED = "running", "done", "stopped"
_OF_LATER_VERSIONS = {"own_device_s", "num_waiting", "loading_s", "has_pace", "command", "plan"}
"""Fields that the first version did not write."""
_LARGEST = 1e15
"""Of its numbers; products of two such are still numbers."""
SILENT_S = 120.0
"""A run that has not written for so long has ended, if its process cannot be asked."""


@dataclass(frozen=True)
class RunStatus:
    """A run at one moment."""

    state: str
    """RUNNING, DONE or STOPPED, as the run wrote it."""
    num_cells: Int64
    num_finished: Int64
    """Cells with a record, failed ones too."""
    num_failed: Int64
    running: tuple[str, ...]
    """The cells under way, in words."""
    num_requests_left: Int64
    num_requests_done: Int64
    """In this session."""
    num_devices: Int64
    """That workers occupy now."""
    elapsed_s: float
    """Of this session."""
    earlier_device_s: float
    """Time times devices of the sessions before it."""
    own_device_s: float | None = None
    """The same of this session; None, of an earlier version: all devices from its start."""
    num_waiting: Int64 = 0
    """Workers that a cluster has not started yet."""
    loading_s: float = 0.0
    """Part of `elapsed_s` before the first turn."""
    has_pace: bool = True
    """Whether enough is measured to tell the time that is left."""
    command: str = ""
    """That goes on with the run; empty in files of an earlier version."""
    plan: str = ""
    """As in the run's manifest, which is written later; empty in files of an earlier version."""
    updated_unix_s: float = field(default_factory=time.time)
    pid: Int64 = field(default_factory=lambda: ProcessName.here().pid)
    host: str = field(default_factory=lambda: ProcessName.here().host)
    pids: str = field(default_factory=lambda: ProcessName.here().pids)
    started: str | None = field(default_factory=lambda: ProcessName.here().started)
    """As in its `ProcessName`; None in files of an earlier version."""

    @property
    def device_s(self) -> float:
        """Time times devices, of all sessions."""
        own_s = self.elapsed_s * self.num_devices if self.own_device_s is None else self.own_device_s
        return self.earlier_device_s + own_s

    @property
    def left_s(self) -> float | None:
        """Time that the rest takes at the pace of this session; None before that is measured."""
        if not self.num_requests_done or not self.has_pace:
            return None
        return max(0.0, self.elapsed_s - self.loading_s) * self.num_requests_left / self.num_requests_done

    @property
    def is_alive(self) -> bool:
        """Whether its process still runs; where that cannot be asked, whether it wrote lately."""
        if self.state != RUNNING:
            return False
        is_alive = ProcessName(self.host, self.pid, self.pids, self.started).is_alive
        return time.time() - self.updated_unix_s < SILENT_S if is_alive is None else is_alive

    def write(self, folder: Path) -> None:
        """Write it to the folder of the run."""
        write_atomically(folder / STATUS, json.dumps(asdict(self), indent=1).encode())


def read_status(folder: Path) -> RunStatus | None:
    """The status of the run in a folder; None where no run has written one.

    Raises:
        ValueError: the file is not a status.
    """
    path = folder / STATUS
    try:
        data = {"pids": "", "started": None, **typed(Mapping[str, Any], parse_json(path.read_bytes()))}
        # what a process writes of itself has no default in a file that another has written
        missing = {item.name for item in fields(RunStatus)} - data.keys() - _OF_LATER_VERSIONS
        if missing:
            raise ValueError(f"expected {', '.join(sorted(missing))}, found none")
        status: RunStatus = typed(RunStatus, data)
        numbers = {name: value for name, value in data.items() if isinstance(value, int | float)}
        wrong = [name for name, value in numbers.items() if not 0 <= value <= _LARGEST]
        if status.state not in (RUNNING, DONE, STOPPED) or wrong:
            name = wrong[0] if wrong else "state"
            raise ValueError(f"{name}: expected what a run writes, found {shown(data[name])}")
        if not status.num_failed <= status.num_finished <= status.num_cells:
            raise ValueError("expected as many failed cells as finished ones at most, and these as all, found others")
        return status
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: expected the status of a run; {error}") from error
