"""python -m experiments.run: compose the cells that the settings ask for, run them, print and write the results."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.cli.command_line import SUCCESS, CommandParser, exit_code_of, settings_help
from harness.compose.run_plan import RunPlan, cell_table, made_folder
from harness.records.runs import MANIFEST
from harness.settings.schema import group_options

USAGE = """\
usage: python -m experiments.run [experiment=NAME] [group=OPTION] [setting=VALUE] [--format csv|json|md] [--list]

Runs speculative decoding with every combination of the given values and measures what verification keeps and what it
buys. Several values of a setting or group, separated by commas, are a sweep. The autoregressive baseline of each
combination is added by itself. Nothing is loaded before every cell has been checked.

options:
  --format csv|json|md  one row per cell on standard output, with intervals; everything else goes to standard error
  --list, --dry-run     print the cells and stop
  --debug               a full traceback where otherwise one line says what is wrong
  -h, --help            this text
"""

EXAMPLES = """\
examples:
  python -m experiments.run experiment=quickstart
  python -m experiments.run experiment=quickstart drafter=eagle3 decoding.temperature=0,0.6,1
  python -m experiments.run drafter=eagle3 drafting.num_speculative_tokens=1,3,5 verification=strict,probabilistic,block
  python -m experiments.run drafter=mtp workload=jsonl workload.path=questions.jsonl --format csv > cells.csv
  python -m experiments.run target=local target.path=FOLDER drafter=eagle3 drafter.path=FOLDER

A run leaves its records, tables and figures in results/runs/NAME; python -m experiments.report FOLDER rebuilds them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return exit_code_of(_main, arguments)


def _main(arguments: Sequence[str]) -> int:
    parser = CommandParser()
    parser.add_argument("--format", choices=("csv", "json", "md"))
    parser.add_argument("--list", "--dry-run", action="store_true")
    options, overrides = parser.parse(arguments)
    if options.help:
        print("\n".join([USAGE, settings_help([*group_options(), "output", ""]), "", EXAMPLES]))
        return SUCCESS
    from harness.compose.compose import compose_plan

    plan = compose_plan(overrides)
    if options.list:
        print(cell_table(plan.cells))
        say(*plan.warnings)
        return SUCCESS
    return run(plan, options.format)


def run(plan: RunPlan, row_format: str | None) -> int:
    """Run the cells of a plan and report what was finished, also after an interruption."""
    for values, reason in plan.skipped:
        print(f"skipped {' '.join(f'{key}={value}' for key, value in values.items())}: {reason}", file=sys.stderr)
    with made_folder(plan.folder):
        say(f"{plan.title}: {len(plan.cells)} cells, results in {plan.folder}", plan.shows)
        say(plan.does_not_show and f"What this does not show: {plan.does_not_show}", *plan.warnings)
        _run_and_report(plan, row_format)
    return SUCCESS


def _run_and_report(plan: RunPlan, row_format: str | None) -> None:
    """Run the cells and report those that were finished."""
    finished: list[str] = []
    try:
        run_plan(plan, finished)
    except (Exception, KeyboardInterrupt) as error:
        what = "interrupted" if isinstance(error, KeyboardInterrupt) else "stopped"
        print(f"{what}: {_kept(plan, finished)}", file=sys.stderr)
        if _lists_only(plan.folder, finished):
            report(plan.folder, row_format)
        raise
    report(plan.folder, row_format)


def say(*texts: str) -> None:
    """Tell the user, beside the results; empty texts are left out."""
    for text in filter(None, texts):
        print(text, file=sys.stderr, flush=True)


def _kept(plan: RunPlan, finished: Sequence[str]) -> str:
    """What there is of a run that did not come to its end."""
    if finished:
        return f"{len(finished)} of {len(plan.cells)} cells were finished; finished cells are kept in {plan.folder}"
    if (plan.folder / MANIFEST).is_file():
        return f"no cell was finished; {plan.folder} still holds the results of an earlier run"
    return "no cell was finished, nothing to report"


def _lists_only(folder: Path, finished: Sequence[str]) -> bool:
    """Whether the folder's manifest is this run's; stopped in the very moment of writing, it may be an older one."""
    manifest = folder / MANIFEST
    return bool(finished) and manifest.is_file() and set(json.loads(manifest.read_text())["cells"]) <= set(finished)


def report(folder: Path, row_format: str | None) -> None:
    """Write tables and figures; print the summary, or rows to standard output and the summary beside them."""
    from harness.metrics.results import read_results
    from harness.report.console import print_summary
    from harness.report.warnings import warnings
    from harness.report.write import rows, write_results

    results = read_results(folder)
    page, *others = write_results(results, folder)
    if row_format is not None:
        print(rows(results, row_format), end="")
    print_summary(results.cells, sys.stdout if row_format is None else sys.stderr)
    for line in warnings(results):
        print(f"note: {line}", file=sys.stderr)
    print(f"report: {page} (and {len(others)} files in tables/ and figures/)", file=sys.stderr)


def run_plan(plan: RunPlan, finished: list[str]) -> None:
    """Run the cells with a progress display, and list those that are finished; the only place that imports models."""
    from harness.sweep.progress import progress_on
    from harness.sweep.run_cells import run_cells

    progress = progress_on(sys.stderr)
    try:
        run_cells(plan, plan.folder, progress, finished)
    finally:
        progress.finish()


if __name__ == "__main__":
    sys.exit(main())
