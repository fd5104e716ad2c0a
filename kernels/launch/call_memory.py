"""Scratch memory of one call that keeps nothing: for callers that own the memory of every call, such as CUDA graphs.

Fresh memory lies in the caller's pool, and nothing is copied from the host, so that the call can be captured. Counters
are what a call needs at 0 and leaves at 0: a caller that keeps them spares the one fill that is left.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..methods import Rule
from .grid_barrier import STRIDE
from .workspace import Workspace

WORDS_PER_ROW, WORDS_PER_WALK, SPARE_WORDS = 3, STRIDE.value // 2, 16
"""Of 8 bytes: what the counters of a row, its request and its draft row take at most; what that of a walk through a
tree takes; what their alignment takes."""
ALIGNED_WORDS = 2
"""Each counter begins at 16 bytes, as memory of its own does: Triton compiles a kernel for what is aligned."""


def counters_for(num_requests: int, width: int, device: torch.device) -> Tensor:
    """[n] int64, 0: what calls of up to R requests (rows of a draw) with K drafts (0 for a draw) count in."""
    num_words = num_requests * (WORDS_PER_ROW * (width + 1) + WORDS_PER_WALK) + SPARE_WORDS
    return torch.zeros(num_words, dtype=torch.int64, device=device)


class CallMemory(Workspace):
    """A workspace of one call.

    Args:
        counters: of `counters_for`, all 0. They serve one stream of work.

    Raises:
        ValueError: they are something else.
    """

    def __init__(self, counters: Tensor) -> None:
        super().__init__()
        if counters.dim() != 1 or counters.dtype != torch.int64 or not counters.is_contiguous():
            raise ValueError(
                f"counters must be one row of int64 without gaps, found {list(counters.shape)} {counters.dtype}"
            )
        self._words = counters
        self._num_taken = 0

    def buffer(self, name: str, size: int, dtype: torch.dtype, device: torch.device, zeroed: bool = False) -> Tensor:
        """[size] scratch; with `zeroed`, a part of the counters.

        Raises:
            ValueError: the counters are too few, or lie on another device.
        """
        found = self._buffers.get(name)
        if not zeroed or (found is not None and found.numel() >= size):
            return super().buffer(name, size, dtype, device, zeroed)
        aligned_bytes = ALIGNED_WORDS * self._words.itemsize
        num_words = ALIGNED_WORDS * -(-max(size, 1) * dtype.itemsize // aligned_bytes)
        first, self._num_taken = self._num_taken, self._num_taken + num_words
        if self._num_taken > len(self._words) or self._words.device != device:
            raise ValueError(
                f"counters must be those of counters_for this many requests and drafts, at least {self._num_taken} on "
                f"{device}; found {len(self._words)} on {self._words.device}"
            )
        self._buffers[name] = self._words[first : self._num_taken].view(dtype)
        return self._buffers[name]

    def rule(self, rule: Rule, width: int, device: torch.device) -> Tensor:
        """As a workspace's, from fills instead of a copy; what is beyond the parameters is not read."""
        values = rule.values(width)
        found = torch.empty(max(1 + width, len(values)), dtype=torch.float64, device=device)
        for place, value in enumerate(values):
            found[place].fill_(value)
        return found
