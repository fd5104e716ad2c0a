"""Tell from another shell what of a run is done, running, failed and left, and how long it takes.

NAME is the name of a run in results/runs, or a run folder. Exits with 0 while the run goes on or when it has done all
its cells, with 1 when it ended before or a cell failed.

examples:
  rejection-lab status quickstart
  watch -n 10 rejection-lab status results/runs/quickstart
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.cli.command_line import CommandParser
from harness.cli.ending import FAILED, SUCCESS, WRONG_SETTINGS
from harness.records.run_status import DONE, RUNNING, RunStatus, read_status
from harness.records.runs import RUNS
from harness.settings.schema import SettingsError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = CommandParser("status", __doc__, "NAME")
    parser.add_argument("name", metavar="NAME", help="name of a run, or its folder")
    return parser.call(_run, arguments, wrong_input=WRONG_SETTINGS)


def _run(options: argparse.Namespace) -> int:
    folders = [RUNS / options.name, Path(options.name)]
    status = next((found for folder in folders if (found := read_status(folder)) is not None), None)
    if status is None:
        raise SettingsError(
            f"NAME: expected a run that has been started, found none at {' or '.join(map(str, folders))}"
        )
    print("\n".join(status_lines(options.name, status)))
    return SUCCESS if status.is_alive or (status.state == DONE and not status.num_failed) else FAILED


def status_lines(name: str, status: RunStatus) -> list[str]:
    """A run in a few lines."""
    from harness.sweep.progress import duration

    was_killed = status.state == RUNNING and not status.is_alive
    state = "killed, or its host is gone" if was_killed else status.state
    process = f" (process {status.pid} on {status.host})" if status.is_alive else ""
    done = status.num_finished - status.num_failed
    left = status.num_cells - status.num_finished
    waiting = (
        f", workers in the cluster's queue: {status.num_waiting}" if status.is_alive and status.num_waiting else ""
    )
    running = ""
    if status.is_alive and status.running:
        running = f", of these running: {'; '.join(status.running)}"
    elif status.is_alive and not waiting:
        running = ", loading"
    lines = [
        f"{name}: {state}{process}",
        f"cells: {done} of {status.num_cells} done, {status.num_failed} failed, {left} left{running}{waiting}",
        f"time: {duration(status.elapsed_s)} in the last session, {status.device_s / 3600:.2f} device-hours in all",
    ]
    if status.is_alive and status.left_s is not None:
        hours = status.left_s * status.num_devices / 3600
        lines.append(f"left: about {duration(status.left_s)}, {hours:.2f} device-hours")
    if not status.is_alive and left:
        goes_on = "the same command goes on where the run was stopped"
        lines.append(f"{goes_on}: {status.command}" if status.command else goes_on)
    if not status.is_alive and status.num_failed:
        lines.append("what has failed is run again with --retry-failed")
    return lines


if __name__ == "__main__":
    sys.exit(main())
