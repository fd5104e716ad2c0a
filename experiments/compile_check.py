"""Compile GPU kernels without a GPU; fail on a register spill.

Compiles every kernel of the sampling core and of the fused layers as its own launches ask, for sm_90: the variants that
come nearest their register limits. With --all every variant, and every kind of kernel for sm_80, sm_89, sm_100 and
sm_120 too: for a change of kernels and before a release. Prints registers, shared memory, stack and spills of every
variant when all are done. Exits with 1 when a variant spills registers or takes more shared memory than a program may
have, or when a kernel of these packages is launched by none of the calls (harness/checks/compile_check/). With --stamp
a check that found nothing wrong is kept in a file, and the same code and version of Triton are not compiled again. With
--methods it compiles what the kernels become with some verification methods, also with a rule of your own.

examples:
  rejection-lab compile-check
  rejection-lab compile-check --stamp results/compile_check.json
  rejection-lab compile-check --all
  rejection-lab compile-check --methods my_rules:reluctant
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from harness.config.cli.command_line import CommandParser, say
from harness.config.cli.ending import FAILED, SUCCESS

CHECKOUT = Path(__file__).parents[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = CommandParser("compile-check", __doc__)
    parser.add_argument("--all", action="store_true", help="compile every variant, not only those nearest their limits")
    parser.add_argument(
        "--stamp", type=Path, metavar="FILE", help="compile only what FILE does not vouch for, and keep it"
    )
    methods = "all verifications of chains by these alone; PACKAGE.MODULE:NAME is a rule of your own, with hooks"
    parser.add_argument("--methods", type=lambda text: text.split(","), default=[], metavar="A,B", help=methods)
    return parser.call(lambda options: check(options.all, options.stamp, options.methods), arguments)


def check(everything: bool, path: Path | None = None, methods: Sequence[str] = ()) -> int:
    """Compile, print what was found of every variant, and on standard error what is wrong.

    Args:
        everything: every variant, for every generation of GPUs.
        path: of the stamp that may spare it; it vouches for no more than what a change compiles.
        methods: what is compiled of them, instead of everything that the kernels become.
    """
    for option in ["--all"] * everything + ["--methods"] * bool(methods):
        if path is not None:
            raise ValueError(f"--stamp: expected no {option} beside it, which always compiles; leave one of them out")
    import triton

    from harness.checks.compile_check.stamp import digest, read_stamp, stamp_of, write_stamp

    # before anything is compiled: what is changed meanwhile is not vouched for
    sources = "" if path is None else digest(CHECKOUT)
    stamp = None if path is None else read_stamp(path)
    if stamp is not None and (stamp.sources, stamp.triton) == (sources, triton.__version__):
        print(
            f"{stamp.num_variants} variants of {stamp.num_kernels} kernels compiled before without a complaint ({path})"
        )
        return SUCCESS
    from harness.checks.compile_check.report import to_text
    from harness.checks.compile_check.shares import compile_all, compile_methods

    if methods:
        say(f"compiling verification by {', '.join(methods)}: minutes of two CPU cores")
        found, wrong = compile_methods(methods, everything)
    else:
        say(f"compiling every kernel: {'much longer than ' if everything else 'about '}five minutes of two CPU cores")
        found, wrong = compile_all(everything)
    print(to_text(found))
    print(f"\n{len(found)} variants of {len({item.kernel for item in found})} kernels compiled")
    say(*wrong)
    if path is not None and not wrong:
        write_stamp(path, stamp_of(found, sources, triton.__version__))
    return FAILED if wrong else SUCCESS


if __name__ == "__main__":
    sys.exit(main())
