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
to standard output, and nothing is written. With --html there is also report.html, one page that holds everything and
needs no server and no network. Two PATHs and --html write one page (comparison.html, beside the second) about both runs
and their differences, paired by prompt.

examples:
  python -m experiments.report results/runs/quickstart
  python -m experiments.report results/runs/quickstart --format csv > cells.csv
  python -m experiments.report results/runs --output comparison
  python -m experiments.report results/runs/quickstart --html
  python -m experiments.report results/runs/before results/runs/after --html"""
WRONG = 2
"""Exit code for a wrong argument, a missing folder or a file that is not a record."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.other is not None and (not options.html or options.format or options.pdf):
        parser.error("two PATHs are compared on one page: expected --html beside them, without --format and --pdf")
    if options.html and options.format:
        parser.error("expected --html or --format, not both")
    try:
        return _run(options)
    except (ValueError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return WRONG


def _run(options: argparse.Namespace) -> int:
    from harness.metrics.results import read_results
    from harness.report.write import column_dictionary, rows, write_comparison

    if options.columns:
        print(column_dictionary(), end="")
    elif options.other is not None:
        page, comparison = write_comparison(options.path, options.other, _folder(options, options.other))
        print(comparison.summary)
        for line in comparison.warnings:
            print(f"note: {line}", file=sys.stderr)
        print(f"comparison: {page}", file=sys.stderr)
    elif options.format:
        _emit(rows(read_results(options.path), options.format), options.output)
    else:
        _write(options)
    return 0


def _write(options: argparse.Namespace) -> None:
    """Write the report, print the summary, and say where the report is."""
    from harness.metrics.results import read_results
    from harness.report.console import print_summary
    from harness.report.warnings import warnings
    from harness.report.write import write_results

    results = read_results(options.path)
    formats = ("png", "pdf") if options.pdf else ("png",)
    paths = write_results(results, _folder(options, options.path), formats, html=options.html)
    print_summary(results.cells)
    for line in warnings(results):
        print(f"note: {line}", file=sys.stderr)
    print(f"report: {paths[0]} (and {len(paths) - 1} files beside it, in tables/ and figures/)", file=sys.stderr)


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
    parser.add_argument("other", nargs="?", type=Path, metavar="PATH", help="another run, to compare with (--html)")
    parser.add_argument("--html", action="store_true", help="write one page of HTML that holds everything")
    parser.add_argument("--format", choices=("csv", "json", "md"), help="print one row per cell")
    parser.add_argument("--output", type=Path, help="folder for the report, or file for the rows of --format")
    parser.add_argument("--pdf", action="store_true", help="write the figures as PDF too")
    return parser


def _folder(options: argparse.Namespace, path: Path) -> Path:
    from harness.report.write import default_output

    return default_output(path) if options.output is None else options.output


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
