"""python -m experiments.certify: test that a sampling core is lossless, and that the test would have noticed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from harness.certification.config import PREFIX, CertifyConfig
from harness.cli.command import PlainCommand
from harness.cli.command_line import FAILED, SUCCESS

USAGE = """\
usage: python -m experiments.certify [certify.setting=VALUE ..] [--debug]

Plays toy requests whose exact law is known through a sampling core, over several rounds, with its own drafts and random
streams, and tests the joint law of their first tokens for every lossless method, draft sampling, dtype and truncation.
Controls that are wrong on purpose are simulated too and must be rejected. Exits with 1 if a lossless cell fails or a
control does not.
"""

EXAMPLES = """\
examples:
  python -m experiments.certify
  python -m experiments.certify certify.methods=block certify.samples=1000000
  python -m experiments.certify certify.subject=harness.certification.vllm_adapter:vllm_core certify.device=cuda"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return PlainCommand(CertifyConfig, PREFIX, USAGE, EXAMPLES).call(run, arguments)


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
