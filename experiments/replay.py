"""Compute every verification method on the drafts that a run recorded, without torch.

PATH is the name of a run in results/runs, a run folder, its cells folder, one cell file, or a folder of run folders,
made with measurement.round_terms=true. Tables and a figure are written beside the records (tables/replay.md, .csv and
.tex, tables/replay_differences.csv, figures/replay.png), and the tables are printed. With
measurement.multi_draft_terms=true also what 1 to 8 drafts a position would be worth at these contexts
(tables/replay_several_drafts.csv).
PATH may also be a folder of recordings by the plug-in for vLLM (*.recording); their cells are written to its cells/.

examples:
  rejection-lab run drafter=eagle verification=probabilistic measurement.round_terms=true name=recorded
  rejection-lab replay recorded
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.config.cli.command_line import CommandParser, say
from harness.config.cli.ending import FAILED, SUCCESS, WRONG_SETTINGS
from harness.records.runs import named


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = CommandParser("replay", __doc__, "PATH")
    parser.add_argument("path", type=named, metavar="PATH", help="name of a run, or where the records are")
    leniency = "lenient verification with each of these, in (0, 1] (default: 0.9 0.7 0.5)"
    parser.add_argument("--leniency", type=float, nargs="+", metavar="L", help=leniency)
    typical = "typical verification with these thresholds (default: 0.09 0.3); may be given several times"
    parser.add_argument("--typical", type=float, nargs=2, action="append", metavar=("EPSILON", "DELTA"), help=typical)
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="folder to write to (default: the run's)")
    parser.add_argument("--pdf", action="store_true", help="write the figure as PDF too")
    return parser.call(_run, arguments, wrong_input=WRONG_SETTINGS)


def _run(options: argparse.Namespace) -> int:
    from harness.analysis.replay.estimators import LENIENCIES, THRESHOLDS, replayed_rules
    from harness.backends.recordings.cells import write_cells
    from harness.backends.recordings.read import recordings_at
    from harness.report.replay.write import read_replay, write_replay
    from harness.report.write import default_output

    thresholds = [tuple(item) for item in options.typical] if options.typical else THRESHOLDS
    notes = write_cells(options.path) if recordings_at(options.path) else []
    found = read_replay(options.path, replayed_rules(options.leniency or LENIENCIES, thresholds))
    output = default_output(options.path) if options.output is None else options.output
    paths = write_replay(found, output, ("png", "pdf") if options.pdf else ("png",))
    print(found.markdown)
    say(*(f"note: {line}" for line in [*notes, *found.warnings]), f"replay: {', '.join(map(str, paths))}")
    return FAILED if found.unreadable else SUCCESS


if __name__ == "__main__":
    sys.exit(main())
