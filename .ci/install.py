"""Install packages with pip, and say step by step what it does: pip itself is silent for minutes, or says everything.

usage: python .ci/install.py [options and packages of pip install]
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Thread

SECONDS_BETWEEN_LINES = 15.0
LARGE_MB = 20.0
"""Of a file, from which on it is named."""
NUM_LINES_OF_FAILURE = 30
PIP = (sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off")
_FILE = re.compile(r"\s*(Downloading|Using cached) (?:\S*/)?([^\s/-]+)-([^\s-]+)\S* \(([\d.]+) (MB|GB)\)")
_INSTALLING = "Installing collected packages: "


def install(command: Sequence[str], tell: Callable[[str], None], every_s: float = SECONDS_BETWEEN_LINES) -> int:
    """Run pip; returns its exit code.

    Args:
        command: of pip, with its arguments.
        tell: gets a line for each step, one every so many seconds in which nothing else was told, and the end of what
            pip said if it failed.
        every_s: these seconds.
    """
    began_s = time.monotonic()
    pip = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    lines: SimpleQueue[str | None] = SimpleQueue()
    Thread(target=_read, args=(pip, lines), daemon=True).start()
    step, num_found, said = "finding versions that fit", 0, deque[str](maxlen=NUM_LINES_OF_FAILURE)
    tell(step)
    while True:
        try:
            line = lines.get(timeout=every_s)
        except Empty:
            found = f", {num_found} packages so far" if num_found else ""
            tell(f"still {step}{found} ({time.monotonic() - began_s:.0f} s)")
            continue
        if line is None:
            break
        said.append(line.rstrip())
        num_found += line.startswith("Collecting ")
        if (found_step := _step_of(line)) is not None:
            step = found_step
            tell(step)
    code = pip.wait()
    for text in said if code else ():
        tell(text)
    tell(f"pip failed with exit code {code}" if code else f"installed in {time.monotonic() - began_s:.0f} s")
    return code


def _read(pip: subprocess.Popen[str], lines: SimpleQueue[str | None]) -> None:
    assert pip.stdout is not None
    for line in pip.stdout:
        lines.put(line)
    lines.put(None)


def _step_of(line: str) -> str | None:
    """What a line of pip says in the words of a step; None for one that need not be told."""
    if line.startswith(_INSTALLING):
        return f"unpacking {line.count(',') + 1} packages"
    file = _FILE.match(line)
    if file is None:
        return None
    how, name, version, size, unit = file.groups()
    if float(size) * (1000 if unit == "GB" else 1) < LARGE_MB:
        return None
    verb = "downloading" if how == "Downloading" else "taking from pip's cache"
    return f"{verb} {name} {version} ({size} {unit})"


if __name__ == "__main__":
    sys.exit(install([*PIP, *sys.argv[1:]], lambda text: print(f"  {text}", flush=True)))
