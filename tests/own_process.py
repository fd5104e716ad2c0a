"""Code in a Python process of its own, where nothing is imported but what the code imports."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def output_of(code: str) -> str:
    """Run code at the root of the repository; what it printed, once it has ended without an error."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
