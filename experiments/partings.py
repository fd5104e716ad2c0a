"""Tell near ties from faults where greedy answers differ, by logits in float32.

At temperature 0 methods that keep the target's argmax give one text but for rounding. For each place at which the
answers of two cells part, the target is run in float32 behind the text that both share: the gap of the two best logits,
how far the answers' tokens are behind, and whether rounding can have decided. Writes partings.json into the folder of
the run, and its report again, which counts them in tables/paired.md. Exits with 1 where a parting is no near tie. PATH
is the name of a run in results/runs, or a run folder, with its records.

examples:
  rejection-lab run drafter=eagle3 decoding.temperature=0 backend.dtype=bfloat16 name=greedy
  rejection-lab partings greedy
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from harness.config.cli.command_line import CommandParser, say
from harness.config.cli.ending import FAILED, SUCCESS
from harness.config.schema import SettingsError
from harness.records.runs import named


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = CommandParser("partings", __doc__, "PATH")
    parser.add_argument("path", type=named, metavar="PATH", help="name of a run, or its folder, with its records")
    where = "where the target is loaded, in float32 and in the dtype of the cells (default: cpu)"
    parser.add_argument("--device", default="cpu", metavar="NAME", help=where)
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="run code that a recorded target brings; read it first"
    )
    return parser.call(_run, arguments)


def _run(options: argparse.Namespace) -> int:
    from harness.analysis.results import read_results
    from harness.checks.partings import attribute
    from harness.records.partings import write_partings
    from harness.report.tables.partings import partings_tables
    from harness.report.write import default_output, write_results

    results = read_results(options.path)
    if len(results.runs) != 1:
        raise SettingsError(f"expected one run at {options.path}, found {len(results.runs)}; name one of its folders")
    trusting = [cell["target"] for cell in results.cells if cell.record.config["target"].get("trust_remote_code")]
    if trusting and not options.trust_remote_code:
        raise SettingsError(
            f"expected --trust-remote-code, found none: the records ask to run code that comes with {trusting[0]}"
        )
    (run,) = results.runs
    found = attribute(results.cells, options.device, lambda text: say(f"note: {text}"))
    path = write_partings(run.folder, found)
    for table in partings_tables(results.cells, {run.name: found}):
        print(table.to_markdown())
    num_near = sum(item.is_near_tie for item in found)
    say(f"partings: {len(found)}, near ties: {num_near}, others: {len(found) - num_near} ({path})")
    write_results(read_results(options.path), default_output(options.path))
    return SUCCESS if num_near == len(found) else FAILED


if __name__ == "__main__":
    sys.exit(main())
