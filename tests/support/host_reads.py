"""Watches the operations of torch for those that wait for the device, which a CUDA graph cannot hold."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

READS = {"aten::_local_scalar_dense", "aten::item", "aten::nonzero", "aten::masked_select", "aten::equal"}
"""Operations that hand values, or a shape that follows from values, to the host."""


class HostReads(TorchDispatchMode):
    """Collects the operations inside that wait for the device, where there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        is_by_mask = name == "aten::index" and any(each is not None and each.dtype is torch.bool for each in args[1])
        if name in READS or is_by_mask:
            self.found.add(name)
        return func(*args, **(kwargs or {}))
