"""Whether what is wanted fits a device, asked before it is made."""

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
    is_there: bool = False
    """Whether it lies on the device already."""


def weights_need(what: str, model: nn.Module, is_there: bool = False) -> Need:
    """What the parameters and buffers of a model take, tied ones counted once; it may be on the meta device."""
    parameters = list(model.parameters())
    num_bytes = sum(tensor.nbytes for tensor in (*parameters, *model.buffers()))
    num_weights = sum(parameter.numel() for parameter in parameters)
    dtypes = dict.fromkeys(str(parameter.dtype).removeprefix("torch.") for parameter in parameters)
    return Need(f"{num_weights:,} weights of {what} in {' and '.join(dtypes)}", num_bytes, is_there)


def check_fits(needs: Sequence[Need], device: torch.device, advice: str) -> None:
    """Raise ValueError unless a device has room for all needs together; what it has is not known everywhere.

    advice: what to do about it, in whole sentences.
    """
    free = free_bytes(device)
    wanted = [need for need in needs if not need.is_there and need.num_bytes]
    needed = sum(need.num_bytes for need in wanted)
    if free is None or needed <= free:
        return
    there = [f"beside {_listed(need)}, which are there" for need in needs if need.is_there]
    raise ValueError(
        f"backend.device: expected {_size(needed)} of free memory on {device} ("
        f"{'; '.join([*map(_listed, wanted), *there])}), found {_size(free)}. {advice}"
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


def _listed(need: Need) -> str:
    return f"{_size(need.num_bytes)} for {need.what}"


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.2f} MB"
