"""Compile GPU kernels without a GPU; fail on a register spill.

Compiles every kernel of the sampling core and of the fused layers for sm_90, as calls of the core and the steps of
engines at shipped shapes launch them: the variants that come nearest their register limits. With --all every variant,
and every kind of kernel for sm_80, sm_89, sm_100 and sm_120 too: for a change of kernels and before a release. Prints
registers, shared memory, stack and spills of every variant when all are done. Exits with 1 when a variant spills
registers or takes more shared memory than a program may have, or when a kernel of these packages is launched by none of
them (harness/checks/compile_check/). With --stamp a check that found nothing wrong is kept in a file: what the file
vouches for is not compiled again, and it is told whose machine code has changed since. With --methods it compiles what
the kernels become with some verification methods, also with a rule of your own.

examples:
  rejection-lab compile-check
  rejection-lab compile-check --stamp results/compile_check.json
  rejection-lab compile-check --all
  rejection-lab compile-check --methods my_rules:reluctant
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.config.cli.command_line import CommandParser, say
from harness.config.cli.ending import FAILED, SUCCESS

if TYPE_CHECKING:
    from harness.checks.compile_check.compiled import CompiledVariant, RecordedLaunch

NUM_NAMED = 20
"""Variants that are named of each kind of difference; the others are counted."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = CommandParser("compile-check", __doc__)
    parser.add_argument("--all", action="store_true", help="compile every variant, not only those nearest their limits")
    parser.add_argument(
        "--stamp", type=Path, metavar="FILE", help="compile only what FILE does not vouch for, and keep it"
    )
    methods = "all verifications of chains by these alone; PACKAGE.MODULE:NAME is a rule of your own, with hooks"
    parser.add_argument("--methods", type=lambda text: text.split(","), default=[], metavar="A,B", help=methods)
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count() or 1, metavar="N", help="that compile at the same time"
    )
    return parser.call(lambda options: check(options.all, options.stamp, options.methods, options.processes), arguments)


def check(everything: bool, path: Path | None = None, methods: Sequence[str] = (), num_processes: int = 1) -> int:
    """Compile, print what was found of every variant, and on standard error what is wrong.

    Args:
        everything: every variant, for every generation of GPUs.
        path: of the stamp that may spare it; it vouches for no more than what a change compiles.
        methods: what is compiled of them, instead of everything that the kernels become.
        num_processes: that compile at the same time.
    """
    for option in ["--all"] * everything + ["--methods"] * bool(methods):
        if path is not None:
            raise ValueError(f"--stamp: expected no {option} beside it, which always compiles; leave one of them out")
    if num_processes < 1:
        raise ValueError(f"--processes: expected 1 or more, found {num_processes}")
    # what reports is imported before anything is compiled: no result is lost to code that changes meanwhile
    from harness.checks.compile_check import complaints, report  # noqa: F401
    from harness.checks.compile_check.launches import launches_of, launches_of_methods

    if methods:
        say(f"compiling verification by {', '.join(methods)}: minutes of two CPU cores")
        return _report(_compiled(launches_of_methods(methods, everything), num_processes))
    if path is not None:
        return _check_with_stamp(path, num_processes)
    say(f"compiling every kernel: {'much longer than ' if everything else 'about '}five minutes of two CPU cores")
    launches = launches_of(everything)
    return _fail_if(_never_launched(launches)) or _report(_compiled(launches, num_processes))


def _check_with_stamp(path: Path, num_processes: int) -> int:
    """Compile what a stamp does not vouch for, and renew it where nothing is wrong."""
    import triton

    from harness.checks.compile_check.launches import launches_of
    from harness.checks.compile_check.stamp import Stamp, Vouched, difference, names_of, read_stamp, write_stamp

    before = read_stamp(path)
    launches = launches_of(False)
    if wrong := _never_launched(launches):
        return _fail_if(wrong)
    codes = {}
    if before is not None and before.triton == triton.__version__:
        codes = {item.key: item.code for item in before.variants.values()}
    keys = [launch.key for launch in launches]
    missing = [launch for launch, key in zip(launches, keys, strict=True) if key not in codes]
    say(f"{len(launches) - len(missing)} of {len(launches)} variants compiled before without a complaint ({path})")
    if missing:
        say(f"compiling {len(missing)}: up to five minutes of two CPU cores")
        found = _compiled(missing, num_processes)
        if _report(found) == FAILED:
            return FAILED
        codes |= {launch.key: item.code for launch, item in zip(missing, found, strict=True)}
    vouched = (Vouched(key, codes[key]) for key in keys)
    stamp = Stamp(triton.__version__, dict(zip(names_of(launches), vouched, strict=True)))
    if before is not None:
        same, *others = difference(stamp, before)
        say(f"machine code: {same} variants as before")
        for words, names in zip(("other machine code", "new", "gone"), others, strict=True):
            if names:
                more = f"; {len(names) - NUM_NAMED} more" if len(names) > NUM_NAMED else ""
                say(f"{words}: {'; '.join(names[:NUM_NAMED])}{more}")
    if stamp != before:
        write_stamp(path, stamp)
    return SUCCESS


def _never_launched(launches: Sequence[RecordedLaunch]) -> list[str]:
    """A line for each kernel that nothing launches; before anything is compiled."""
    from harness.checks.compile_check.complaints import never_launched
    from harness.checks.compile_check.launches import expected_kernels

    return never_launched(launches, expected_kernels(launches))


def _compiled(launches: Sequence[RecordedLaunch], num_processes: int) -> list[CompiledVariant]:
    from harness.checks.compile_check.compiled import compile_launches

    return compile_launches(launches, min(num_processes, len(launches)))


def _report(found: Sequence[CompiledVariant]) -> int:
    """Print what was found; returns the exit code."""
    from harness.checks.compile_check.complaints import complaints, known_spills
    from harness.checks.compile_check.report import to_text

    print(to_text(found))
    print(f"\n{len(found)} variants of {len({item.kernel for item in found})} kernels compiled")
    say(*known_spills(found))
    return _fail_if(complaints(found))


def _fail_if(wrong: Iterable[str]) -> int:
    """Say what is wrong, if anything is; returns the exit code."""
    wrong = list(wrong)
    say(*wrong)
    return FAILED if wrong else SUCCESS


if __name__ == "__main__":
    sys.exit(main())
