"""Gumbel noise that is computed once: the draft draws with it, the target does, and so do later rounds at a position.

What the coupled method draws with is a function of seed, position and token, so a row of it may be kept as long as
there is room. Shapes: N rows, V the target's vocabulary.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor

from ..random.streams import gumbel

MAX_BYTES = 2**26
"""Room for kept rows: 1,365 of 6,144 tokens, 65 of 128,256."""
MAX_ROWS = 4096
"""Bounds the lookup at small V, where bytes alone would allow millions of rows."""


class KeptNoise:
    """`kernels.random.streams.gumbel` with a memory; the oldest rows make room for new ones."""

    def __init__(self) -> None:
        self._rows = torch.empty(0, 0, dtype=torch.float64)
        self._places: OrderedDict[tuple[int, int], int] = OrderedDict()
        """(seed, position) -> row, the oldest first."""

    def __call__(self, seeds: Tensor, positions: Tensor, vocab_size: int) -> Tensor:
        """[N, V] float64; arguments as for `kernels.random.streams.gumbel`."""
        capacity = min(MAX_ROWS, MAX_BYTES // (8 * vocab_size))
        wanted = list(zip(seeds.tolist(), positions.tolist(), strict=True))
        if len(wanted) > capacity:
            return gumbel(seeds, positions, vocab_size)
        if self._rows.shape[1] != vocab_size or self._rows.device != seeds.device:
            # an engine calls this in inference mode, and a tensor made there could not be written to outside of it
            with torch.inference_mode(False):
                self._rows = torch.empty(capacity, vocab_size, dtype=torch.float64, device=seeds.device)
            self._places.clear()
        # the last use counts, so that what one call needs does not drive out its own
        for key in wanted:
            if key in self._places:
                self._places.move_to_end(key)
        missing = {key: index for index, key in enumerate(wanted) if key not in self._places}
        if missing:
            for key in missing:
                is_full = len(self._places) == capacity
                self._places[key] = self._places.popitem(last=False)[1] if is_full else len(self._places)
            index = torch.tensor(list(missing.values()), device=seeds.device)
            self._rows[[self._places[key] for key in missing]] = gumbel(seeds[index], positions[index], vocab_size)
        places = torch.tensor([self._places[key] for key in wanted], dtype=torch.int64, device=seeds.device)
        return self._rows.index_select(0, places)
