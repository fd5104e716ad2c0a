"""Say what of this machine hinders runs, or makes their numbers less sure, and what to do about it.

Packages and extras, compiler, cores, memory and disk, the GPU, its clocks and who else uses it; a certification of the
sampling core on this very device, some seconds long, and on a GPU one verification beside the speed of its memory.
Exits with 1 if something has to be put right.

examples:
  rejection-lab doctor
  rejection-lab doctor --device cpu
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from textwrap import fill

from harness.config.cli.command_line import CommandParser, say
from harness.config.cli.ending import FAILED, SUCCESS

INDENT = " " * 24
"""Of folded lines: findings and advice begin behind the mark and the subject."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = CommandParser("doctor", __doc__)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="what to look at")
    return parser.call(lambda options: run(options.device), arguments)


def run(device: str) -> int:
    """Print every finding as it comes, then what is to be done."""
    from harness.checks.doctor.environment import look_at_environment
    from harness.checks.doctor.finding import Finding, Weight

    found: list[Finding] = []

    def tell(item: Finding) -> None:
        found.append(item)
        print(_folded(f"{item.weight.value:8} {item.subject + ':':14} {item.found}"), flush=True)
        if item.advice:
            print(_folded(f"{INDENT}-> {item.advice}"), flush=True)

    for item in look_at_environment():
        tell(item)
    say("loading PyTorch, then certifying the sampling core on this device: half a minute")
    from harness.checks.doctor.device import look_at_device

    for item in look_at_device(device):
        tell(item)
    num_problems = sum(item.weight is Weight.problem for item in found)
    num_remarks = sum(item.weight is Weight.remark for item in found)
    notes = f" ({num_remarks} marked note)" if num_remarks else ""
    if num_problems:
        print(f"put right what is marked PROBLEM: {num_problems}{notes}")
        return FAILED
    print(f"nothing hinders runs here{notes}; next: rejection-lab run experiment=quickstart")
    return SUCCESS


def _folded(text: str) -> str:
    """A line; on a terminal the lines that it takes there, below what is said and not below its mark."""
    if not sys.stdout.isatty():
        return text
    width = shutil.get_terminal_size().columns
    return fill(text, width, subsequent_indent=INDENT, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    sys.exit(main())
