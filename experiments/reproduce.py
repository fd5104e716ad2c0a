"""Run the cells of a run once more from their records, and compare the tokens.

Runs every cell of a run again from the settings in its records, without the files in conf/, writes records and report
to PATH-again, and says whether every request got the same tokens: with the same seeds, machine and versions it must.
Exits with 1 when one did not or a record cannot be read, with 2 when there is nothing to compare. PATH is the name of a
run in results/runs, or a run folder, with its records.

examples:
  rejection-lab reproduce quickstart
  rejection-lab reproduce results/runs/quickstart
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.config.cli.command_line import CommandParser, say
from harness.config.cli.ending import FAILED, SUCCESS
from harness.config.schema import SettingsError
from harness.records.runs import named


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = CommandParser("reproduce", __doc__, "PATH")
    parser.add_argument("path", type=named, metavar="PATH", help="name of a run, or its folder, with its records")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="folder of the new run (default: PATH-again)")
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="run code that a recorded target brings; read it first"
    )
    return parser.call(_run, arguments)


def _run(options: argparse.Namespace) -> int:
    """Run the recorded cells again, report, and compare."""
    from harness.records.runs import read_runs
    from harness.records.same_tokens import same_tokens

    path = options.path
    try:
        runs = read_runs(path)
    except ValueError as error:
        # nothing was compared: not the exit code of other tokens
        raise SettingsError(str(error)) from error
    unreadable = [text for run in runs for text in run.unreadable]
    say(*(f"left out: {text}" for text in unreadable))
    if len(runs) != 1:
        raise SettingsError(f"expected one run at {path}, found {len(runs)}; name one of its folders")
    folder = path.with_name(f"{path.name}-again") if options.output is None else options.output
    if folder.resolve() == path.resolve():
        raise SettingsError(f"--output: expected another folder than that of the records, found {folder}")
    from harness.report.console import print_results
    from harness.runner.plan.from_records import recorded_plan
    from harness.runner.plan.run_plan import Resume
    from harness.runner.whole_run import run_and_report

    plan = recorded_plan(runs[0].cells, runs[0].manifest, folder, options.command)
    trusting = [cell.target.name for cell in plan.cells if cell.target.trust_remote_code]
    if trusting and not options.trust_remote_code:
        raise SettingsError(
            f"expected --trust-remote-code, found none: the records ask to run code that comes with {trusting[0]}"
        )
    say(f"runs again, from the settings in its records: {path}")
    # what an earlier call has made would be compared again otherwise
    plan = replace(plan, resume=Resume(is_fresh=True))
    run_and_report(plan, print_results)
    (new,) = read_runs(folder)
    found = same_tokens(runs[0].cells, new.cells)
    print("\n".join(found.lines))
    return SUCCESS if found.is_same and not unreadable else FAILED


if __name__ == "__main__":
    sys.exit(main())
