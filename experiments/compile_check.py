"""Compile every GPU kernel without a GPU; fail on a register spill.

Compiles every kernel of the sampling core and of the fused layers as its own launches ask: all variants for sm_90, and
every kind of kernel once for sm_80 and sm_100. Prints registers, shared memory, stack and spills of every variant when
all are done, after about ten minutes of two CPU cores. Exits with 1 when a variant spills registers, or when a kernel
of these packages is launched by none of the calls (harness/compile_check/core_calls.py, layer_calls.py).

examples:
  rejection-lab compile-check
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from harness.cli.command_line import FAILED, SUCCESS, CommandParser, say


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return CommandParser("compile-check", __doc__).call(lambda options: check(), arguments)


def check() -> int:
    """Compile everything, print what was found of every variant, and on standard error what is wrong."""
    say("compiling every kernel: about ten minutes of two CPU cores")
    from harness.compile_check.compile import to_text
    from harness.compile_check.shares import compile_shares

    found, wrong = compile_shares()
    print(to_text(found))
    print(f"\n{len(found)} variants of {len({item.kernel for item in found})} kernels compiled")
    say(*wrong)
    return FAILED if wrong else SUCCESS


if __name__ == "__main__":
    sys.exit(main())
