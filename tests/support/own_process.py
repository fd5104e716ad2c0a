"""Code in a Python process of its own, where nothing is imported but what the code imports."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def output_of(code: str) -> str:
    """Run code at the root of the repository; what it printed, once it has ended without an error."""
    return _ended("-c", code).stdout


def errors_of(*arguments: str) -> str:
    """Run Python with arguments there; what it wrote to standard error, once it has ended without an error."""
    return _ended(*arguments).stderr


def _ended(*arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done
