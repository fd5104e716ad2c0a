"""Test that a sampling core is lossless, and that the test would have noticed if it were not.

Runs toy requests whose exact law is known through a sampling core, over several rounds, with its own drafts and random
streams, and tests the joint law of their first tokens for every lossless method, draft sampling, dtype and truncation.
Controls that are wrong on purpose run too and must be rejected. Exits with 1 if a lossless case fails or a
control passes, with 2 if the subject supports no case that was asked for.

examples:
  rejection-lab certify
  rejection-lab certify --methods block --samples 1e6
  PYTHONPATH=vllm-0.33.0-cp38-abi3-manylinux_2_28_x86_64.whl rejection-lab certify --subject vllm
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from harness.checks.certification.config import CertifyConfig
from harness.config.cli.command_line import CommandParser, say
from harness.config.cli.ending import FAILED, SUCCESS, WRONG_SETTINGS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = CommandParser("certify", __doc__)
    parser.add_settings(CertifyConfig, "certify")
    return parser.call(lambda options: run(options.settings), arguments)


def run(config: CertifyConfig) -> int:
    """Certify, print one line per case and the verdict, and write the report."""
    say(f"loading PyTorch and {config.subject}")
    from harness.checks.certification.certify import certify
    from harness.checks.certification.report import headline, line, notes, write

    result = certify(config, lambda outcome: print(line(outcome), flush=True))
    page = write(result, Path(config.output))
    print(headline(result))
    for note in notes(result) if result.num_tested else ():
        print(f"  {note}")
    say(f"report: {page}")
    if not result.num_tested:
        return WRONG_SETTINGS
    return SUCCESS if result.is_green else FAILED


if __name__ == "__main__":
    sys.exit(main())
