"""Run speculative decoding with every combination of the given values, and measure it.

Several values of a setting or group, separated by commas, are a sweep. The autoregressive baseline of each combination
is added by itself. Nothing is loaded before every cell has been checked. Records, tables and figures go to
results/runs/NAME, or to a folder of their own named by the time and a word; `rejection-lab report NAME` rebuilds tables
and figures. The same command goes on where its last run was stopped.

examples:
  rejection-lab run experiment=quickstart
  rejection-lab run experiment=quickstart drafter=eagle3 decoding.temperature=0,0.6,1
  rejection-lab run drafter=eagle3 drafting.num_speculative_tokens=1,3,5 verification=strict,probabilistic,block
  rejection-lab run drafter=mtp workload=jsonl workload.path=questions.jsonl --format csv > cells.csv
  rejection-lab run target=local target.path=FOLDER drafter=eagle3 drafter.path=FOLDER
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from harness.config.cli.arguments import device_names, whole_number
from harness.config.cli.command_line import CommandParser, say
from harness.config.cli.ending import SUCCESS
from harness.config.cli.settings_help import OVERRIDES, settings_help
from harness.config.run import skipped_lines
from harness.config.schema import SettingsError, group_options
from harness.runner.plan.run_plan import Workers

if TYPE_CHECKING:
    from harness.analysis.results import Results


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = CommandParser("run", __doc__, OVERRIDES, lambda: settings_help([*group_options(), "output", ""]))
    rows = "print one row per cell with intervals; everything else goes to standard error"
    parser.add_argument("--format", choices=("csv", "json", "md"), help=rows)
    parser.add_argument(
        "--list", "--dry-run", action="store_true", help="print the cells and what is done, estimate the rest, and stop"
    )
    parser.add_argument("--fresh", action="store_true", help="run every cell again, also those that are there")
    parser.add_argument("--retry-failed", action="store_true", help="run again what has failed: cells, and requests")
    parser.add_argument(
        "--stall-limit",
        type=partial(whole_number, least=0),
        default=Workers.stall_limit_s,
        metavar="SECONDS",
        help="a cell has failed if no request of it ends for so long; 0 waits for ever (default: %(default)s)",
    )
    parser.add_argument(
        "--devices",
        type=device_names,
        default=Workers.devices,
        metavar="A,B",
        help="one worker for each, which sees it alone (CUDA_VISIBLE_DEVICES); cells that are compared stay together "
        "(default: one worker that sees them all)",
    )
    parser.add_argument(
        "--accept-drift",
        action="store_true",
        help="go on with cells that were begun with another commit, library, GPU, number of threads or version of the "
        "server, and mark them",
    )
    return parser.call(_run, arguments)


def _run(options: argparse.Namespace) -> int:
    from harness.runner.plan.compose import compose_plan
    from harness.runner.plan.run_plan import Resume
    from harness.runner.plan.unnamed import resumed

    resume = Resume(options.fresh, options.accept_drift, options.retry_failed)
    plan = replace(
        resumed(compose_plan(options.overrides), resume),
        workers=Workers(options.devices, options.stall_limit),
    )
    if options.devices != Workers.devices and plan.launcher.is_remote:
        raise SettingsError(
            f"--devices: expected launcher=local, whose workers share this host, found launcher="
            f"{plan.launcher.kind}; there, give launcher.num_workers and launcher.gpus_per_worker"
        )
    if options.list:
        from harness.runner.check_machine import check_machine
        from harness.runner.check_plan import check_inputs
        from harness.runner.listing import listing

        # a list downloads nothing
        check_inputs(plan, downloads=False)
        table, lines = listing(plan)
        print(table)
        say(*plan.told_at_start, *skipped_lines(plan.skipped), *lines)
        # a plan for another machine can be looked at all the same
        check_machine(plan)
        return SUCCESS
    from harness.runner.whole_run import run_and_report

    return run_and_report(plan, partial(show, row_format=options.format))


def show(results: Results, row_format: str | None) -> None:
    """Print the summary, or rows to standard output and the summary beside them."""
    from harness.report.console import print_results
    from harness.report.write import rows

    if row_format is not None:
        print(rows(results, row_format), end="")
    print_results(results, sys.stdout if row_format is None else sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
