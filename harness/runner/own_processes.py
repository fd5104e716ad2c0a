"""Which processes belong to a run, and which of them have a GPU open; Linux only, from /proc.

A run's own are those that this process and what it started have started, such as servers and ranks, and the process
that waits for this one. Workers beside this one are not: what they compute takes its time from this one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
DEVICES = "/dev/nvidia"
"""How the names of GPUs begin, before their number."""


def own_processes() -> frozenset[int]:
    """The processes of this run, this one included.

    Raises:
        OSError: the system does not tell.
    """
    return frozenset({os.getppid(), os.getpid(), *_started_by(os.getpid())})


def num_with_a_gpu_open(pids: frozenset[int]) -> int:
    """How many of some processes have a GPU open, whichever: at most so many compute on one."""
    return sum(map(_has_a_gpu_open, pids))


def _started_by(pid: int) -> Iterator[int]:
    """All that a process has started, and what these have."""
    for child in _children(pid):
        yield child
        # it may have ended meanwhile
        with suppress(OSError):
            yield from _started_by(child)


def _children(pid: int) -> list[int]:
    """What the threads of a process have started; some of them may end while they are asked.

    Raises:
        OSError: none of them tells.
    """
    found: list[int] = []
    refusals = []
    threads = list((PROC / str(pid) / "task").iterdir())
    for thread in threads:
        try:
            found += map(int, (thread / "children").read_text().split())
        except OSError as error:
            refusals.append(error)
    if refusals and len(refusals) == len(threads):
        raise refusals[0]
    return found


def _has_a_gpu_open(pid: int) -> bool:
    # another user's, or one that has ended
    with suppress(OSError):
        for file in (PROC / str(pid) / "fd").iterdir():
            with suppress(OSError):
                if os.readlink(file).removeprefix(DEVICES).isdecimal():
                    return True
    return False
