"""Whether weights fit a device, asked before they are made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

MEMINFO = Path("/proc/meminfo")


class Need(NamedTuple):
    """One thing that wants memory."""

    what: str
    num_bytes: int


def weights_need(what: str, model: nn.Module, dtype: torch.dtype) -> Need:
    """What the parameters of a model take in a dtype, tied ones counted once; the model may be on the meta device."""
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    name = str(dtype).removeprefix("torch.")
    return Need(f"{num_parameters:,} weights of {what} in {name}", num_parameters * dtype.itemsize)


def check_fits(needs: Sequence[Need], device: torch.device | str) -> None:
    """Raise ValueError unless a device has room for all needs together; what it has is not known everywhere."""
    device = torch.device(device)
    free = free_bytes(device)
    needed = sum(need.num_bytes for need in needs)
    if free is None or needed <= free:
        return
    listed = "; ".join(f"{_size(need.num_bytes)} for {need.what}" for need in needs)
    raise ValueError(
        f"backend.device: expected {_size(needed)} of free memory on {device} ({listed}), found {_size(free)}; take "
        f"smaller models, a smaller backend.dtype or a device with more memory, or end what else runs there"
    )


def free_bytes(device: torch.device) -> int | None:
    """Memory that new tensors can have on a device; None where it cannot be told.

    On a GPU what torch holds and does not use counts as free. On a CPU it is what Linux calls available.
    """
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    if device.type != "cpu" or not MEMINFO.is_file():
        return None
    fields = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines() if ":" in line)
    return int(fields["MemAvailable"].split()[0]) * 1024


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB"
