"""Memory for weights that lies as a model on the meta device says: tensors that are parts of one stay so.

A model is packed there, where it takes no memory, and filled afterwards: nothing is held twice meanwhile, and no hole
is left where a part was before.
"""

from __future__ import annotations

import torch
from torch import Tensor


class MemoryLayout:
    """Memory on one device, laid out like that of other tensors."""

    def __init__(self, device: torch.device | str) -> None:
        self._device = device
        self._memory: dict[int, Tensor] = {}
        """By the storage that it is laid out like."""

    def like(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """Uninitialized memory of a tensor's shape and strides; of tensors that share memory it is shared."""
        storage = tensor.untyped_storage()
        memory = self._memory.get(storage._cdata)
        if memory is None:
            size = storage.nbytes() // tensor.element_size()
            memory = self._memory[storage._cdata] = torch.empty(size, dtype=dtype, device=self._device)
        return memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
