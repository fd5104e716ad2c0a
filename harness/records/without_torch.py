"""What a provenance would say of the device, told without torch; nothing where that cannot be told for sure."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

VISIBLE = "CUDA_VISIBLE_DEVICES"
_NVIDIA = Path("/proc/driver/nvidia/gpus")
_TIMEOUT_S = 10


class DeviceHere(NamedTuple):
    """What torch would find here."""

    type: str
    """cpu or cuda."""
    gpu: str | None
    """Name of the GPU."""


def device_here() -> DeviceHere | None:
    """The device that `auto` is here; None where only torch knows."""
    if why_no_gpu(os.environ.get(VISIBLE)) is not None:
        return DeviceHere("cpu", None)
    names = _gpu_names()
    # which of them CUDA takes first is its own affair
    return DeviceHere("cuda", names.pop()) if len(names) == 1 else None


def why_no_gpu(visible: str | None, index: int = 0) -> str | None:
    """Why torch does not find a GPU here, in a few words; None where it may find it.

    Args:
        visible: what CUDA_VISIBLE_DEVICES is for the process that asks; None where it is not set.
        index: of the GPU, among those that are visible.
    """
    try:
        build = version("torch")
    except PackageNotFoundError:
        return None
    if build.endswith("+cpu"):
        return f"torch {build} is a build without them"
    if visible in ("", "-1"):
        return f"{VISIBLE} hides all"
    if not _may_have_gpu():
        return "this host has no driver of one"
    most = _most_gpus(visible)
    return None if most is None or index < most else f"there are {most} at most"


def _most_gpus(visible: str | None) -> int | None:
    """As many GPUs as there may be: the driver lists those that are hidden from a container too; None if not known."""
    if visible is not None:
        return len(visible.split(","))
    return sum(1 for _ in _NVIDIA.iterdir()) if _NVIDIA.is_dir() else None


def _may_have_gpu() -> bool:
    """Whether there is a device file or a driver of a GPU for which torch may have been built."""
    return any(Path(name).exists() for name in ("/dev/nvidiactl", "/proc/driver/nvidia", "/dev/kfd", "/dev/dxg"))


def _gpu_names() -> set[str]:
    """Names of the GPUs; none where one is divided, whose parts torch calls otherwise."""
    if shutil.which("nvidia-smi") is None:
        return set()
    command = ("nvidia-smi", "-L")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return set()
    if done.returncode != 0 or "MIG" in done.stdout:
        return set()
    return set(re.findall(r"^GPU [0-9]+: (.+) \(UUID", done.stdout, re.MULTILINE))
