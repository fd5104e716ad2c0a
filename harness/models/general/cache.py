"""What a network of transformers keeps of each slot between forwards.

A tensor is made when a layer first writes to it, so that widths, numbers of heads and layers that share keys need no
reading of a configuration. A target lets one token be read to find out what is kept; later caches are made like that.
The rules are those of harness.models.slot_cache: rolling back is writing again from an earlier place.

Shapes: S slots, C capacity of a slot, H heads, D width of a head.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from harness.models.fused.row_groups import RowGroups
from harness.models.general.states import StateKey
from harness.models.general.view import GeneralView, LayerStandIn
from harness.models.tree_places import TreePlaces

ATTENDED = ("key", "value")
"""Kinds of tensors that attention reads."""


class Kept(NamedTuple):
    """One tensor of a cache."""

    kind: str
    """key, value or indexer."""
    layer: int


class GeneralCache:
    """Keys and values of all layers for a fixed number of slots of a fixed capacity."""

    def __init__(
        self,
        num_layers: int,
        num_slots: int,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device,
        rewind: int = 0,
    ) -> None:
        """rewind: tokens by which a forward may begin before the end of the last one."""
        self.num_slots, self.capacity, self.dtype = num_slots, capacity, dtype
        self.slot_ids = torch.arange(num_slots, device=device)
        self.layer_stand_ins = [LayerStandIn(self, layer) for layer in range(num_layers)]
        self.num_shards = 1
        """Ranks that share what is counted here of all, on the meta device."""
        self.is_in_place = False
        """Whether attention of forwards of chains over whole slots reads keys and values where they lie."""
        self.in_use: GeneralView | None = None
        """The view of the forward that runs."""
        self.tensors: dict[Kept, Tensor] = {}
        """[S, H, C, D] each."""
        self.ring = rewind + 2
        """R, see harness.models.general.states: the states after those tokens, of the one before, and of the next."""
        self.states: dict[StateKey, Tensor] = {}
        """[S, R, ...] each."""

    @property
    def num_bytes(self) -> int:
        """Memory of all that is kept."""
        return sum(tensor.nbytes for tensor in self._all) // self.num_shards

    @property
    def _all(self) -> tuple[Tensor, ...]:
        return (*self.tensors.values(), *self.states.values())

    def view(
        self,
        rows: slice | Tensor,
        # [B, T] int64
        positions: Tensor,
        length: int,
        tree: TreePlaces | None = None,
        groups: RowGroups | None = None,
    ) -> GeneralView:
        """The slots of one forward, as harness.models.slot_cache.SlotCache has them; each row is read alone.

        Raises:
            ValueError: the slots cannot hold that length.
        """
        if not 0 < length <= self.capacity:
            raise ValueError(
                f"slots hold {self.capacity} positions, found a forward that needs {length}; make the cache with a "
                "larger capacity or cut the sequence"
            )
        self.in_use = GeneralView(self, rows, positions, length, tree)
        return self.in_use

    def keep(self, states: Tensor, kind: str, layer: int) -> Tensor:
        """[S, H, C, D], where states like these [B, H, T, D] are kept; zeros at first."""
        key = Kept(kind, layer)
        if key not in self.tensors:
            size = self.num_slots, states.shape[1], self.capacity, states.shape[3]
            # zeros: a masked key has weight 0, and 0 times a NaN found there is NaN
            self.tensors[key] = torch.zeros(size, dtype=states.dtype, device=states.device)
        return self.tensors[key]

    def keep_state(self, key: StateKey, state: Tensor) -> Tensor:
        """[S, R, ...], where states like this one [B, ...] are kept; zeros at first."""
        if key not in self.states:
            size = self.num_slots, self.ring, *state.shape[1:]
            self.states[key] = torch.zeros(size, dtype=state.dtype, device=state.device)
        return self.states[key]

    def make_like(self, other: GeneralCache) -> None:
        """Make all that another cache of the same network has, in this one's sizes."""
        for kept, tensor in other.tensors.items():
            self.keep(tensor, *kept)
        for key, state in other.states.items():
            # [B, ...] without the ring
            self.keep_state(key, state[:, 0])

    def keep_path(
        self,
        rows: slice | Tensor,
        # [B] int64
        starts: Tensor,
        # [B, D] int64
        path: Tensor,
    ) -> None:
        """Let the nodes of an accepted path lie one after the other; see SlotCache.keep_path."""
        steps = torch.arange(path.shape[1], device=path.device)
        slots = (self.slot_ids[rows] if isinstance(rows, slice) else rows)[:, None, None]
        found = (starts[:, None] + torch.where(path < 0, steps, path))[:, None, :]
        wanted = (starts[:, None] + steps)[:, None, :]
        for tensor in self.tensors.values():
            heads = torch.arange(tensor.shape[1], device=tensor.device)[None, :, None]
            # the nodes are read before the first is written
            tensor[slots, heads, wanted] = tensor[slots, heads, found]

    def clear(self, rows: slice | Tensor) -> None:
        """Zero some slots: only needed after a model produced NaN there, which masking does not hide."""
        for tensor in self._all:
            tensor[rows] = 0

    def move(self, source: int, destination: int) -> None:
        """Let one slot hold all that another one does."""
        for tensor in self._all:
            tensor[destination] = tensor[source]
