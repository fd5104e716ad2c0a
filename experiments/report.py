"""python -m experiments.report: rebuild tables and figures from the records of a run, without torch."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

EPILOG = """\
PATH is a run folder, its cells folder, one cell file, or a folder of run folders. Without --format the report is
written beside the records (report.md, tables/, figures/) and a summary is printed. With --format one row per cell goes
to standard output, and nothing is written.

examples:
  python -m experiments.report results/runs/quickstart
  python -m experiments.report results/runs/quickstart --format csv > cells.csv
  python -m experiments.report results/runs --output comparison"""
WRONG = 2
"""Exit code for a wrong argument, a missing folder or a file that is not a record."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    options = _parser().parse_args(arguments)
    from harness.console import print_summary
    from harness.notices import notices
    from harness.report import column_dictionary, rows, write_results
    from harness.results import read_results

    if options.columns:
        print(column_dictionary(), end="")
        return 0
    try:
        results = read_results(options.path)
        if options.format:
            text = rows(results, options.format)
            _emit(text, options.output)
            return 0
        paths = write_results(results, _folder(options), ("png", "pdf") if options.pdf else ("png",))
    except (ValueError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return WRONG
    print_summary(results.cells)
    for line in notices(results):
        print(f"note: {line}", file=sys.stderr)
    print(f"report: {paths[0]} (and {len(paths) - 1} files in tables/ and figures/)", file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.report",
        description="Rebuild tables and figures from the records of a run.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("path", nargs="?", type=Path, metavar="PATH", help="where the records are")
    what.add_argument("--columns", action="store_true", help="print what every column means, with its unit")
    parser.add_argument("--format", choices=("csv", "json", "md"), help="print one row per cell")
    parser.add_argument("--output", type=Path, help="folder for the report, or file for the rows of --format")
    parser.add_argument("--pdf", action="store_true", help="write the figures as PDF too")
    return parser


def _folder(options: argparse.Namespace) -> Path:
    from harness.report import default_output

    return default_output(options.path) if options.output is None else options.output


def _emit(text: str, output: Path | None) -> None:
    """Write rows to a file, or to standard output, whose reader may have seen enough."""
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text)
        return
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
