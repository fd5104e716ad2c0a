"""Runs a program that a model wrote in a process of its own, with limits.

| limit             | how                                                                                        |
|-------------------|--------------------------------------------------------------------------------------------|
| time              | CPU_S seconds of CPU and WALL_S seconds in all; then its process group is killed           |
| memory            | MEMORY_BYTES of address space, where the system takes such a limit (not macOS)             |
| network           | sockets are refused; where the system allows a namespace of its own, there is no network   |
| files, processes  | opening for writing, removing, starting and killing are refused; no byte goes into a file  |

It guards against accidents, not against an attacker: code that a hostile model writes needs a container or a machine of
its own. Modules of the standard library alone can be imported.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

CPU_S = 10
WALL_S = 20
MEMORY_BYTES = 2**30
CHILD = Path(__file__).with_name("sandboxed_program.py")


class Outcome(NamedTuple):
    """How a program ended."""

    is_right: bool
    """Whether it came to its end without an error."""
    error: str
    """What stopped it; empty where it came to its end."""
    not_confined: tuple[str, ...] = ()
    """Limits that the system does not have."""


def run_program(source: str, cpu_s: int = CPU_S, wall_s: float = WALL_S) -> Outcome:
    """Run a program to its end, or to the first limit.

    Args:
        source: Python.
        cpu_s: seconds of CPU.
        wall_s: seconds in all.
    """
    # a program that ends its process cannot say that it has come to its end
    token = secrets.token_hex(16)
    given = {"source": source, "token": token, "cpu_s": cpu_s, "memory_bytes": MEMORY_BYTES}
    with tempfile.TemporaryDirectory() as folder:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", str(CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={"PYTHONHASHSEED": "0"},
            start_new_session=True,
            text=True,
        )
        try:
            told, _ = child.communicate(json.dumps(given), timeout=wall_s)
        except subprocess.TimeoutExpired:
            return Outcome(False, f"it took longer than {wall_s:g} s")
        finally:
            _end(child)
    try:
        found = json.loads(told)
    except ValueError:
        return Outcome(False, f"its process ended early (code {child.returncode})")
    is_right = found.get("token") == token and not found["error"]
    return Outcome(is_right, found["error"], tuple(found["not_confined"]))


def _end(child: subprocess.Popen[str]) -> None:
    """Kill what is left of its process group."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.communicate()
