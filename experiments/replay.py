"""python -m experiments.replay: every verification method on the drafts that a run recorded, without torch."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

EPILOG = """\
PATH is a run folder, its cells folder, one cell file, or a folder of run folders, made with
measurement.round_terms=true. Tables and a figure are written beside the records (tables/replay.md, .csv and .tex,
tables/replay_differences.csv, figures/replay.png), and the tables are printed.

example:
  python -m experiments.run drafter=eagle verification=probabilistic measurement.round_terms=true name=recorded
  python -m experiments.replay results/runs/recorded"""
WRONG = 2
"""Exit code for a wrong argument, a missing folder or files that contradict each other."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    options = _parser().parse_args(arguments)
    from harness.replay.rules import LENIENCIES, THRESHOLDS, replayed_rules
    from harness.replay.write import read_replay, write_replay
    from harness.report.write import default_output

    try:
        thresholds = [tuple(item) for item in options.typical] if options.typical else THRESHOLDS
        found = read_replay(options.path, replayed_rules(options.leniency or LENIENCIES, thresholds))
        output = default_output(options.path) if options.output is None else options.output
        paths = write_replay(found, output, ("png", "pdf") if options.pdf else ("png",))
    except (ValueError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return WRONG
    _emit(found.markdown)
    for line in found.warnings:
        print(f"note: {line}", file=sys.stderr)
    print(f"replay: {', '.join(map(str, paths))}", file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.replay",
        description="Work out every verification method on the drafts that a run recorded.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("path", type=Path, metavar="PATH", help="where the records are")
    parser.add_argument("--leniency", type=float, nargs="+", metavar="L", help="lenient, each in (0, 1] (0.9 0.7 0.5)")
    parser.add_argument(
        "--typical",
        type=float,
        nargs=2,
        action="append",
        metavar=("EPSILON", "DELTA"),
        help="typical with these thresholds (0.09 0.3); may be given several times",
    )
    parser.add_argument("--output", type=Path, help="folder to write to; by itself the run's")
    parser.add_argument("--pdf", action="store_true", help="write the figure as PDF too")
    return parser


def _emit(text: str) -> None:
    """Print to a reader who may have seen enough."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
