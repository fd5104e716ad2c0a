"""Tell from another shell what of a run is done, running, failed and left, and how long it takes.

NAME is the name of a run in results/runs, or a run folder. Exits with 0 while the run goes on or when it has done all
its cells, with 1 when it ended before, a cell failed or a file of its records is missing, and with 2 when a file is
damaged, which `report` leaves out, or no record is left. Without NAME it lists the runs in results/runs, the last
first.

examples:
  rejection-lab status
  rejection-lab status quickstart
  watch -n 10 rejection-lab status results/runs/quickstart
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.config.cli.command_line import CommandParser
from harness.config.cli.ending import FAILED, SUCCESS, WRONG_SETTINGS
from harness.config.schema import SettingsError
from harness.records.lost_files import LostFiles, lost_files
from harness.records.run_status import DONE, RUNNING, STATUS, RunStatus, read_status
from harness.records.runs import RUNS, is_report, is_unnamed, named, refuse_profile


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = CommandParser("status", __doc__, "[NAME]")
    parser.add_argument("name", type=named, metavar="NAME", nargs="?", help="name of a run, or its folder")
    return parser.call(_run, arguments, wrong_input=WRONG_SETTINGS)


def _run(options: argparse.Namespace) -> int:
    if options.name is None:
        print("\n".join(_all_runs()) or f"no run has been started in {RUNS}")
        return SUCCESS
    status = read_status(options.name)
    if status is None:
        refuse_profile(options.name)
        raise SettingsError(
            f"NAME: expected the name of a run in {RUNS} or a run folder, found no run that has been started at "
            f"{options.name}; without NAME all runs are listed"
        )
    lost = _lost(options.name, status)
    lines = status_lines(options.name.resolve().name, status, lost)
    if status.state == DONE and not is_report(options.name):
        lines.append(f"no report yet: rejection-lab report {options.name} writes it")
    print("\n".join(lines))
    if lost.damaged or not lost.leaves_records:
        return WRONG_SETTINGS
    is_whole = status.state == DONE and not status.num_failed and not lost.missing
    return SUCCESS if status.is_alive or is_whole else FAILED


def _lost(folder: Path, status: RunStatus, reads: bool = True) -> LostFiles:
    """What is lost of a run; a run that goes on writes its files, and reading them would disturb what it measures."""
    return LostFiles() if status.is_alive else lost_files(folder, status.num_finished, reads)


def _all_runs() -> list[str]:
    """A line for each run that lies by name, the one that wrote last first; unreadable ones at the end."""
    found, unreadable = list[tuple[float, str]](), list[str]()
    for path in sorted(RUNS.glob(f"*/{STATUS}")):
        try:
            status = read_status(path.parent)
        except ValueError as error:
            unreadable.append(str(error))
            continue
        if status is not None:
            # many runs may be large, and another one may be measuring here
            lost = _lost(path.parent, status, reads=False)
            line = f"{path.parent.name}: {_state(status, lost)}; {_cells(status, lost)}"
            # its name says nothing of what it is
            line += f"; {status.command}" if is_unnamed(path.parent.name) and status.command else ""
            found.append((status.updated_unix_s, line))
    return [line for _, line in sorted(found, reverse=True)] + unreadable


def _state(status: RunStatus, lost: LostFiles) -> str:
    was_killed = status.state == RUNNING and not status.is_alive
    state = "killed, or its host is gone" if was_killed else status.state
    files = (("missing", lost.missing), ("damaged", lost.damaged))
    return state + "".join(f", files {word}: {len(paths)}" for word, paths in files if paths)


def _num_done(status: RunStatus, lost: LostFiles) -> int:
    """Cells that did not fail and whose records are there."""
    num_whole = status.num_finished if lost.num_whole is None else min(lost.num_whole, status.num_finished)
    return max(0, num_whole - status.num_failed)


def _num_left(status: RunStatus, lost: LostFiles) -> int:
    return status.num_cells - status.num_failed - _num_done(status, lost)


def _cells(status: RunStatus, lost: LostFiles) -> str:
    done, left = _num_done(status, lost), _num_left(status, lost)
    return f"{done} of {status.num_cells} cells done, {status.num_failed} failed, {left} left"


def status_lines(name: str, status: RunStatus, lost: LostFiles) -> list[str]:
    """A run in a few lines, and a line for each file that is lost."""
    from harness.runner.progress import device_time, duration

    process = f" (process {status.pid} on {status.host})" if status.is_alive else ""
    waiting = (
        f", workers in the cluster's queue: {status.num_waiting}" if status.is_alive and status.num_waiting else ""
    )
    running = ""
    if status.is_alive and status.running:
        running = f", of these running: {'; '.join(status.running)}"
    elif status.is_alive and not waiting:
        running = ", loading"
    lines = [
        f"{name}: {_state(status, lost)}{process}",
        f"{_cells(status, lost)}{running}{waiting}",
        f"time: {duration(status.elapsed_s)} in the last session, {device_time(status.device_s)} in all",
    ]
    if status.is_alive and status.left_s is not None:
        devices_s = status.left_s * status.num_devices
        lines.append(f"left: about {duration(status.left_s)}, {device_time(devices_s)}")
    lines += [f"missing: {path}" for path in lost.missing] + [f"damaged: {path}" for path in lost.damaged]
    if not status.is_alive and (_num_left(status, lost) or lost.missing or lost.damaged):
        goes_on = "the same command goes on where the run was stopped"
        if lost.missing or lost.damaged:
            goes_on = "bring these files back, or give the same command, which runs their cells again"
        lines.append(f"{goes_on}: {status.command}" if status.command else goes_on)
    if not status.is_alive and status.num_failed:
        lines.append("what has failed is run again with --retry-failed")
    return lines


if __name__ == "__main__":
    sys.exit(main())
