"""Say whether a draft head works with its target, and if not, what to mend.

Loads both, answers 30 built-in prompts of three kinds at temperature 0 and 1 with K = 4, and prints acceptance by
position beside what is known of the pair and what its form allows. Then it tries what may be wrong: chat template,
thinking, vocabulary mapping, auxiliary layers, shifted positions, norms, order of joined states, embeddings, rotary
embedding, dtype. An alternative that accepts more is the fault, named with what to set. Exits with 1 if there is one.

TARGET and DRAFTER are names of conf/target and conf/drafter, or folders and Hub ids as `run` takes them by target.path
and drafter.path; of a folder the kind of drafter is read from its config.json, or given as drafter=KIND.

examples:
  rejection-lab check-head zoo eagle3
  rejection-lab check-head qwen3_8b FOLDER drafter=eagle3 --output results/runs/check
  rejection-lab check-head target=local target.path=FOLDER drafter=eagle3 drafter.path=FOLDER
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.config.cli.command_line import CommandParser, say
from harness.config.cli.ending import FAILED, SUCCESS
from harness.config.cli.settings_help import settings_help
from harness.config.schema import SettingsError, group_options

SHOWN = 4
"""Alternatives on the console; the report has all."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = CommandParser(
        "check-head",
        __doc__,
        "[TARGET DRAFTER] [group=OPTION ..] [setting=VALUE ..]",
        lambda: settings_help([name for name in group_options() if name in ("target", "drafter", "backend")]),
    )
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="write the report there, as .md, .html and .json")
    parser.add_argument("--no-trials", action="store_true", help="run the protocol alone, without alternatives")
    parser.add_argument("--reference", metavar="NAME", help="compare with this file of harness/references")
    measured = "write what was measured as a file of harness/references"
    parser.add_argument("--write-reference", type=Path, metavar="FILE", help=measured)
    return parser.call(_run, arguments)


def _run(options: argparse.Namespace) -> int:
    from harness.checks.head.pair import pair_overrides

    overrides = pair_overrides(options.overrides)
    say("loading PyTorch and the models")
    from harness.checks.head.check import check
    from harness.checks.head.protocol import Runs, compose
    from harness.checks.head.report import acceptance_table, headline, lines, reference_of, tried_table, write
    from harness.records.files import write_atomically
    from harness.report.console import print_table
    from harness.runner.check_plan import check_plan
    from harness.runner.cpu_threads import choose_threads
    from harness.runner.progress import progress_on

    protocol = compose(overrides)
    if options.write_reference is not None and not protocol.is_standard:
        raise SettingsError(
            "--write-reference: expected the standard protocol, which references are of, found other prompts, another "
            "length or seed; leave out workload.num_prompts, decoding.max_new_tokens and seed"
        )
    check_plan(protocol.plan)
    choose_threads(protocol.plan.cells)
    runs = Runs(progress_on(sys.stderr))
    found = check(protocol, runs, tries=not options.no_trials, reference=options.reference, tell=say)
    print(headline(found))
    if found.cells:
        print_table(acceptance_table(found))
        if found.tried:
            print_table(tried_table(found, SHOWN))
        print()
        for line in lines(found):
            print(f"- {line}")
    if options.write_reference is not None and found.cells:
        write_atomically(options.write_reference, reference_of(found).encode())
        say(f"reference: {options.write_reference}")
    if options.output is not None:
        say(f"report: {write(found, options.output)}")
    return SUCCESS if found.is_sound else FAILED


if __name__ == "__main__":
    sys.exit(main())
