"""Rebuild tables and figures from the records of a run, without torch.

PATH is the name of a run in results/runs (of one without a name the word will do), a run folder, its cells folder, one
cell file, or a folder of run folders. Without --format the report is written beside the records (report.md, tables/,
figures/) and a summary is printed. With --format one row per cell goes to standard output, and nothing is written. A
record that cannot be read costs the others nothing: it is named, and the command exits with 1; with 2 if there is none
that can. With --html there is also report.html, one page that holds everything and needs no server and no network. Two
PATHs and --html write one page (comparison.html, beside the second) about both runs and their differences, paired by
prompt.

examples:
  rejection-lab report
  rejection-lab report quickstart
  rejection-lab report results/runs/quickstart --format csv > cells.csv
  rejection-lab report results/runs --output comparison
  rejection-lab report results/runs/quickstart --html
  rejection-lab report results/runs/before results/runs/after --html
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.config.cli.command_line import CommandParser, say
from harness.config.cli.ending import FAILED, SUCCESS, WRONG_SETTINGS
from harness.config.schema import SettingsError
from harness.records.runs import RUNS, last_run, named


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = CommandParser("report", __doc__, "[PATH [PATH]]")
    what = parser.add_mutually_exclusive_group()
    of_path = "name of a run, or where the records are (default: the last run in results/runs)"
    what.add_argument("path", nargs="?", type=named, metavar="PATH", help=of_path)
    what.add_argument("--columns", action="store_true", help="print what every column means, with its unit")
    parser.add_argument("other", nargs="?", type=named, metavar="PATH", help="another run, to compare with (--html)")
    parser.add_argument("--html", action="store_true", help="write one page of HTML that holds everything")
    parser.add_argument("--format", choices=("csv", "json", "md"), help="print one row per cell")
    parser.add_argument("--output", type=Path, help="folder for the report, or file for the rows of --format")
    parser.add_argument("--pdf", action="store_true", help="write the figures as PDF too")
    return parser.call(_run, arguments, wrong_input=WRONG_SETTINGS)


def _run(options: argparse.Namespace) -> int:
    if options.other is not None and (not options.html or options.format or options.pdf):
        raise SettingsError("two PATHs are compared on one page: expected --html, without --format and --pdf")
    if options.html and options.format:
        raise SettingsError("expected --html or --format, not both")
    from harness.analysis.results import read_results
    from harness.report.warnings import left_out
    from harness.report.write import column_dictionary, default_output, rows, write_comparison
    from harness.runner.progress import telling

    if options.columns:
        print(column_dictionary(), end="")
        return SUCCESS
    if options.path is None:
        options.path = last_run()
        if options.path is None:
            raise SettingsError(f"PATH: expected the name of a run or where records are, found no run in {RUNS}")
        say(f"the last run: {options.path}")
    if options.other is not None:
        output = default_output(options.other) if options.output is None else options.output
        with telling("comparing the runs"):
            page, comparison = write_comparison(options.path, options.other, output)
        print("\n".join([comparison.summary, *(comparison.settings_lines or ["no setting differs"])]))
        unreadable = comparison.unreadable
        say(*(f"note: {line}" for line in [*left_out(unreadable), *comparison.warnings]), f"comparison: {page}")
    elif options.format:
        with telling("reading records"):
            results = read_results(options.path)
            text, unreadable = rows(results, options.format), results.unreadable_records
        say(*(f"note: {line}" for line in left_out(unreadable)))
        if options.output is None:
            print(text, end="")
        else:
            options.output.parent.mkdir(parents=True, exist_ok=True)
            options.output.write_text(text)
    else:
        from harness.report.console import print_results
        from harness.runner.whole_run import write_report

        output = default_output(options.path) if options.output is None else options.output
        formats = ("png", "pdf") if options.pdf else ("png",)
        shown = write_report(options.path, print_results, output, formats, html=options.html)
        unreadable = shown.unreadable
    return FAILED if unreadable else SUCCESS


if __name__ == "__main__":
    sys.exit(main())
