"""Time a round on several ranks (backend.tensor_parallel), with and without the sums over them.

The difference is what the sums take, waiting for the slower rank included. Without them hidden states mean nothing,
but every other operation is the same. Takes the settings of `rejection-lab profile`, and backend.tensor_parallel;
cells of one rank stand beside those of several. Every slot (backend.max_concurrency) decodes. Writes bench_ranks.md
and bench_ranks.json to the run's folder. On a CPU it shows that everything runs, and measures nothing.

examples:
  rejection-lab bench-ranks target=llama3_8b target.layers=transformers backend.tensor_parallel=1,2
  rejection-lab bench-ranks drafter=eagle backend.tensor_parallel=2 backend.device=cpu
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from experiments.profile_round import (
    LENGTH,
    LENGTH_ON_A_CPU,
    NUM_REPEATS,
    NUM_REPEATS_ON_A_CPU,
    RANKS,
    compose,
    why_not_used,
)
from harness.config.cli.arguments import whole_number
from harness.config.cli.command_line import CommandParser, say
from harness.config.cli.ending import SUCCESS
from harness.config.cli.settings_help import OVERRIDES, settings_help
from harness.config.device import asks_for_gpu
from harness.config.schema import group_options
from harness.runner.plan.run_plan import cell_table, made_folder


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = CommandParser(
        "bench-ranks",
        __doc__,
        OVERRIDES,
        lambda: settings_help([*filter(_takes, group_options()), "output", ""], _takes),
    )
    at_least_2 = partial(whole_number, least=2)
    parser.add_argument("--length", type=at_least_2, metavar="N", help="tokens in each slot")
    parser.add_argument("--repeats", type=at_least_2, metavar="N", help="timed rounds, 32 at most")
    parser.add_argument("--list", "--dry-run", action="store_true", help="print the cells and stop")
    return parser.call(_run, arguments)


def _why_not_used(key: str) -> str | None:
    return None if key == RANKS else why_not_used(key)


def _takes(key: str) -> bool:
    return _why_not_used(key) is None


def _run(options: argparse.Namespace) -> int:
    plan = compose(options.overrides, options.command, _why_not_used)
    if options.list:
        print(cell_table(plan.cells))
        return SUCCESS
    with made_folder(plan.folder):
        say("loading PyTorch and the models")
        measures = any(asks_for_gpu(cell.backend.device) for cell in plan.cells)
        length = options.length or (LENGTH if measures else LENGTH_ON_A_CPU)
        num_repeats = options.repeats or (NUM_REPEATS if measures else NUM_REPEATS_ON_A_CPU)
        from harness.checks.profiling.rank_cost import RankCost, rank_costs, table, write_costs
        from harness.report.console import print_table

        found: list[RankCost] = []
        for cost in rank_costs(plan.cells, length, num_repeats):
            found.append(cost)
            page = write_costs(plan, length, found)
        print_table(table(found))
    say(f"report: {page}")
    return SUCCESS


if __name__ == "__main__":
    sys.exit(main())
