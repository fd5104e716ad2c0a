"""Compile GPU kernels without a GPU; fail on a register spill.

Compiles every kernel of the sampling core and of the fused layers as its own launches ask, for sm_90: the variants that
come nearest their register limits. With --all every variant, and every kind of kernel for sm_80, sm_89, sm_100 and
sm_120 too: for a change of kernels and before a release. Prints registers, shared memory, stack and spills of every
variant when all are done. Exits with 1 when a variant spills registers or takes more shared memory than a program may
have, or when a kernel of these packages is launched by none of the calls (harness/compile_check/).

examples:
  rejection-lab compile-check
  rejection-lab compile-check --all
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from harness.cli.command_line import CommandParser, say
from harness.cli.ending import FAILED, SUCCESS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = CommandParser("compile-check", __doc__)
    parser.add_argument("--all", action="store_true", help="compile every variant, not only those nearest their limits")
    return parser.call(lambda options: check(options.all), arguments)


def check(everything: bool) -> int:
    """Compile, print what was found of every variant, and on standard error what is wrong."""
    say(f"compiling every kernel: {'much longer than ' if everything else 'about '}five minutes of two CPU cores")
    from harness.compile_check.compile import to_text
    from harness.compile_check.shares import compile_shares

    found, wrong = compile_shares(everything)
    print(to_text(found))
    print(f"\n{len(found)} variants of {len({item.kernel for item in found})} kernels compiled")
    say(*wrong)
    return FAILED if wrong else SUCCESS


if __name__ == "__main__":
    sys.exit(main())
