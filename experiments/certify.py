"""python -m experiments.certify: test that a sampling core is lossless, and that the test would have noticed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from harness.certification.config import CertifyConfig, read_config
from harness.command_line import FAILED, SUCCESS, CommandParser, exit_code_of

USAGE = """\
usage: python -m experiments.certify [certify.setting=VALUE ..] [--debug]

Plays toy requests whose exact law is known through a sampling core, over several rounds, with its own drafts and random
streams, and tests the joint law of their first tokens for every lossless method, draft sampling, dtype and truncation.
Controls that are wrong on purpose are played too and must be rejected. Exits with 1 if a lossless cell fails or a
control does not.

settings:
  certify.subject=package.module:function  what to certify: the function takes a torch device and returns a core
                                           (harness/certification/subject.py); the project's own unless given
  certify.device=auto|cpu|cuda             auto takes a GPU where there is one
  certify.size=auto|small|full             full (auto, on a GPU): every cell, with samples enough to detect a total
                                           variation of .003; small (auto, elsewhere): fewer cells and samples
  certify.samples=N                        requests in each cell, whatever the size
  certify.batch=N                          requests in flight at a time
  certify.workers=N                        processes that play cells at the same time; unless given, 1 on a CPU and on a
                                           GPU 12, or fewer CPU cores less two; the results do not depend on it
  certify.methods=strict,block             only these verification methods
  certify.cells=TEXT                       only cells whose name contains the text
  certify.controls=true|false              whether the controls are played
  certify.seed=N                           of all random streams
  certify.output=FOLDER                    for report.md and certification.json; results/runs/certification unless given

examples:
  python -m experiments.certify
  python -m experiments.certify certify.methods=block certify.samples=1000000
  python -m experiments.certify certify.subject=harness.certification.vllm_adapter:vllm_core certify.device=cuda"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    return exit_code_of(lambda: _main(arguments), "--debug" in arguments)


def _main(arguments: Sequence[str]) -> int:
    options, settings = CommandParser().parse(arguments)
    if options.help:
        print(USAGE)
        return SUCCESS
    return run(read_config(settings))


def run(config: CertifyConfig) -> int:
    """Certify, print one line per cell and the verdict, and write the report."""
    from harness.certification.certify import certify
    from harness.certification.report import headline, line, notes, write_report

    result = certify(config, lambda outcome: print(line(outcome), flush=True))
    page = write_report(result, Path(config.output))
    print(headline(result))
    for note in notes(result):
        print(f"  {note}")
    print(f"report: {page}", file=sys.stderr)
    return SUCCESS if result.is_green else FAILED


if __name__ == "__main__":
    sys.exit(main())
