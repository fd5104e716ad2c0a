"""Time what a round costs the host while it looks for the end of reasoning, by context length.

Each kind of parser is timed after contexts of 1,000 to 128,000 tokens: it must take the same time at all of them.
Beside them stands a control that copies the history.

examples:
  rejection-lab bench-reasoning
  rejection-lab bench-reasoning --contexts 1000,1000000 --draft-tokens 8
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from harness.checks.profiling.reasoning_config import ReasoningCostConfig
from harness.config.cli.command_line import CommandParser, say
from harness.config.cli.ending import SUCCESS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = CommandParser("bench-reasoning", __doc__)
    parser.add_settings(ReasoningCostConfig, "cost")
    return parser.call(lambda options: run(options.settings), arguments)


def run(config: ReasoningCostConfig) -> int:
    """Measure, print the table and write it."""
    say("loading PyTorch, then timing every parser")
    from harness.checks.profiling.reasoning_cost import measure, table, write_costs
    from harness.report.console import print_table

    costs = measure(config)
    page = write_costs(config, costs)
    print_table(table(costs))
    say(f"report: {page}")
    return SUCCESS


if __name__ == "__main__":
    sys.exit(main())
