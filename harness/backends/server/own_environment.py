"""A Python environment of its own for a server, made once in a folder."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.backends.server.interpreter import python_of


@dataclass(frozen=True)
class OwnEnvironment:
    """What is installed where."""

    folder: Path
    what: str
    """Package and version, for messages."""
    size_gb: float
    """Of the folder, while it is made."""

    def make(self) -> None:
        """Make it, with nothing in it.

        Raises:
            ValueError: what is missing for it.
        """
        if sys.platform != "linux":
            raise ValueError(f"{self.what}: expected Linux, found {platform.system()}")
        place = next(item for item in self.folder.absolute().parents if item.is_dir())
        free_gb = shutil.disk_usage(place).free / 1e9
        if free_gb < self.size_gb:
            raise ValueError(f"{self.what}: expected {self.size_gb:g} GB free in {place}, found {free_gb:.1f}")
        self.run([sys.executable, "-m", "venv", str(self.folder)], "a Python that makes environments (python3-venv)")

    def pip(self, arguments: Sequence[str], expected: str) -> None:
        """Run its pip; ValueError says what was expected where it fails."""
        self.run([str(python_of(self.folder)), "-m", "pip", "--disable-pip-version-check", *arguments], expected)

    def run(self, command: Sequence[str], expected: str) -> None:
        """Run a command; ValueError says what was expected where it fails."""
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        if found.returncode:
            lines = [line for line in (found.stderr or found.stdout).splitlines() if line.strip()]
            last = next((line for line in reversed(lines) if "ERROR" in line), lines[-1] if lines else "nothing")
            raise ValueError(f"{self.what}: expected {expected}, found {' '.join(last.split())}")

    def tells(self, program: str) -> list[str] | None:
        """The words that a program prints for its Python; None where it fails, or there is none."""
        try:
            found = subprocess.run([python_of(self.folder), "-c", program], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return None
        return found.stdout.split()
