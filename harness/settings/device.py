"""The device of a command: as its settings name it, and as torch does. Knows torch only when it is asked for one."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from harness.settings.schema import SettingsError

if TYPE_CHECKING:
    import torch


class Device(Enum):
    """Where a command runs."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


def chosen_device(choice: Device, key: str) -> torch.device:
    """The device of a choice; auto takes a GPU where there is one.

    Args:
        choice: what was asked for.
        key: of the setting, for the message.

    Raises:
        SettingsError: a GPU was asked for and torch sees none.
    """
    import torch

    has_gpu = torch.cuda.is_available()
    if choice is Device.cuda and not has_gpu:
        raise SettingsError(f"{key}: expected a CUDA device for cuda, found none; use cpu or auto")
    return torch.device("cuda" if choice is not Device.cpu and has_gpu else "cpu")
