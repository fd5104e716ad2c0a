"""Devices and dtypes: as settings name them, and as torch does. Imports torch only when it is asked for one."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from harness.config.schema import SettingsError

if TYPE_CHECKING:
    import torch


class Device(Enum):
    """Where a command runs."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


def resolve_device(name: str, key: str = "backend.device") -> torch.device:
    """The device of a setting; auto takes a GPU where there is one.

    Args:
        name: auto, cpu, cuda or cuda:N.
        key: of the setting, for the message.

    Raises:
        SettingsError: a GPU is asked for and torch sees none.
    """
    import torch

    has_gpu = torch.cuda.is_available()
    if name.startswith("cuda") and not has_gpu:
        raise SettingsError(f"{key}: expected a GPU for {name}, torch sees none; use cpu or auto")
    return torch.device(("cuda" if has_gpu else "cpu") if name == "auto" else name)


def resolve_dtype(name: str, device: torch.device) -> torch.dtype | None:
    """The dtype of a setting: auto, float32, bfloat16 or float16; None is the checkpoint's own."""
    import torch

    if name == "auto":
        return torch.float32 if device.type == "cpu" else None
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def resolve_graphs(graphs: bool | None, device: torch.device) -> bool:
    """Whether steps have fixed sizes, captured as CUDA graphs on a GPU; null does so on a GPU."""
    return device.type == "cuda" if graphs is None else graphs


def asks_for_gpu(name: str) -> bool:
    """Whether a device is a GPU, or will be if it can be had."""
    return resolve_device(name).type != "cpu" if name == "auto" else name != "cpu"
