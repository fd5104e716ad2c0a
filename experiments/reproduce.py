"""python -m experiments.reproduce: run the cells of a run once more from their records, and compare the tokens."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.cli.command_line import FAILED, SUCCESS, CommandParser, exit_code_of
from harness.settings.schema import SettingsError

USAGE = """\
usage: python -m experiments.reproduce PATH [--output FOLDER]

Runs every cell of a run again from the settings in its records, without the files in conf/, writes records and report
to PATH-again, and says whether every request got the same tokens: with the same seeds, machine and versions it must.
Exits with 1 when one did not, with 2 when there is nothing to compare. PATH is a run folder with its records.

options:
  --output FOLDER       folder of the new run; by itself PATH-again
  --debug               a full traceback where otherwise one line says what is wrong
  -h, --help            this text

example:
  python -m experiments.reproduce results/runs/quickstart"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return exit_code_of(_main, arguments)


def _main(arguments: Sequence[str]) -> int:
    parser = CommandParser()
    parser.add_argument("--output", type=Path)
    options, paths = parser.parse(arguments)
    if options.help:
        print(USAGE)
        return SUCCESS
    if len(paths) != 1:
        raise SettingsError(f"expected one run folder, found {len(paths)}: {' '.join(paths)}")
    command = shlex.join(["python", "-m", "experiments.reproduce", *arguments])
    return again(Path(paths[0]), options.output, command)


def again(path: Path, output: Path | None, command: str) -> int:
    """Run the cells that are recorded at a path again, report, and compare."""
    from experiments.run import run
    from harness.records.runs import read_runs
    from harness.records.same_tokens import same_tokens

    try:
        runs = read_runs(path)
    except ValueError as error:
        # nothing was compared: not the exit code of other tokens
        raise SettingsError(str(error)) from error
    if len(runs) != 1:
        raise SettingsError(f"expected one run at {path}, found {len(runs)}; name one of its folders")
    folder = path.with_name(f"{path.name}-again") if output is None else output
    if folder.resolve() == path.resolve():
        raise SettingsError(f"--output: expected another folder than that of the records, found {folder}")
    from harness.compose.from_records import recorded_plan

    run(recorded_plan(runs[0].cells, runs[0].manifest, folder, command, str(path)), None)
    (new,) = read_runs(folder)
    found = same_tokens(runs[0].cells, new.cells)
    print("\n".join(found.lines))
    return SUCCESS if found.is_same else FAILED


if __name__ == "__main__":
    sys.exit(main())
