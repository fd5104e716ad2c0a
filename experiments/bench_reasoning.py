"""python -m experiments.bench_reasoning: host time per round of looking for the end of reasoning, by context length."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from harness.cli.command import PlainCommand
from harness.cli.command_line import SUCCESS
from harness.profiling.reasoning_config import PREFIX, BoundaryCostConfig

USAGE = """\
usage: python -m experiments.bench_reasoning [cost.setting=VALUE ..] [--debug]

Times what a round costs the host while reasoning goes on, for each kind of parser, behind contexts of 1,000 to 128,000
tokens: it must be the same at all of them. Beside them stands a control that copies the history.
"""

EXAMPLES = """\
examples:
  python -m experiments.bench_reasoning
  python -m experiments.bench_reasoning cost.contexts=1000,1000000 cost.draft_tokens=8"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return PlainCommand(BoundaryCostConfig, PREFIX, USAGE, EXAMPLES).call(run, arguments)


def run(config: BoundaryCostConfig) -> int:
    """Measure, print the table and write it."""
    from harness.profiling.reasoning_cost import measure
    from harness.profiling.reasoning_report import table, write_costs

    costs = measure(config)
    page = write_costs(config, costs)
    print(table(costs))
    print(f"report: {page}", file=sys.stderr)
    return SUCCESS


if __name__ == "__main__":
    sys.exit(main())
