"""Some slots of a cache for one forward, in the place where modeling code expects a cache of transformers.

Modeling code writes keys and values here and gets those of the slots back. Where it asks where its queries lie, to
build a mask, it gets this object, which `masks` reads: transformers passes `get_query_offset` on as it is.

Shapes: B rows of a forward, T tokens of a row, H heads, D width of a head, M nodes of a tree, S slots, C capacity of a
slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from harness.models.general.states import CONV, RECURRENT, StateKey, States
from harness.models.tree_places import TreePlaces

if TYPE_CHECKING:
    from harness.models.general.cache import GeneralCache


class LayerStandIn:
    """Answers what modeling code asks of a layer of a cache; tensors are the cache's."""

    is_compileable = True
    is_sliding = False
    is_croppable = True
    is_initialized = True
    supports_early_init = False
    record_past = True
    """What `GeneralView.is_recording_past` says, as versions of transformers before it ask."""

    def __init__(self, cache: GeneralCache, layer: int) -> None:
        self._cache, self._layer = cache, layer

    @property
    def recurrent_states(self) -> StatesBefore:
        """By number, as versions before `GeneralView.get_recurrent_state` ask."""
        assert self._cache.in_use is not None
        return StatesBefore(self._cache.in_use, self._layer)


@dataclass(frozen=True)
class StatesBefore:
    """The recurrent states of a layer before the tokens that are being read."""

    view: GeneralView
    layer: int

    def __getitem__(self, state_idx: int) -> Tensor | None:
        return self.view.get_recurrent_state(self.layer, state_idx)


class GeneralView(Cache):
    """Some slots of a `GeneralCache`, for one forward."""

    rope_table = None
    """As a view of harness.models.slot_cache has it: layers are never fused."""
    mask = None
    """Masks are built by modeling code."""

    def __init__(
        self,
        cache: GeneralCache,
        rows: slice | Tensor,
        # [B, T] int64
        positions: Tensor,
        length: int,
        tree: TreePlaces | None = None,
    ) -> None:
        # not Cache.__init__: its layers would hold tensors
        stand_ins: Any = cache.layer_stand_ins
        self.layers = stand_ins
        self.layer_class_to_replicate = None
        self.offloading = False
        self.cache, self.rows, self.positions, self.length, self.tree = cache, rows, positions, length, tree
        self.slots = cache.slot_ids[rows] if isinstance(rows, slice) else rows
        """[B] int64, the slot of each row."""
        self.states = States(self)
        self.is_whole = length == cache.capacity and tree is None
        """Whether it is of chains, and reads all places of its slots."""
        self.is_in_place = self.is_whole and cache.is_in_place
        """Whether attention reads keys and values where the cache has them (harness.models.general.in_place)."""
        self._rows_in_place: dict[int | None, Tensor] = {}
        self.places = positions if tree is None else tree.absolute
        """[B, T] int64, where each token's key and value lie in its slot."""
        places = torch.arange(length, device=positions.device)
        self.key_positions = places[None, None, None, :]
        """[1, 1, 1, length] or, of trees, [B, 1, T, length] int64: position of each key, as each query sees it."""
        self.sees: Tensor | None = None
        """[B, 1, T, length] bool: keys before the tree, and nodes that a query sees; None for chains."""
        if tree is not None:
            node, sees = _nodes(tree, places)
            # a node that a query sees lies as deep as there are nodes before it that the query sees too
            depths = sees.cumsum(dim=-1) - 1
            self.key_positions = torch.where(node >= 0, tree.starts[:, None, None] + depths, places)[:, None]
            self.sees = ((node < 0) | sees)[:, None]

    def rows_in_place(self, window: int | None) -> Tensor:
        """What stands for a mask of a forward in place.

        Args:
            window: places that a query sees at most; None for all up to its own, as where a slot holds no more.

        Returns:
            [2, 1, 1, B] int64, slot and first position of each row; with a window [3, 1, 1, B], it of each row too.
        """
        bound = None if window is None or window >= self.length else window
        if bound not in self._rows_in_place:
            rows = [self.slots, self.positions[:, 0]]
            rows += [] if bound is None else [torch.full_like(self.slots, bound)]
            self._rows_in_place[bound] = torch.stack(rows).view(len(rows), 1, 1, -1)
        return self._rows_in_place[bound]

    @cached_property
    def begins(self) -> bool:
        """Whether every row begins at the start of its slot; waits for the device."""
        return bool((self.positions[:, 0] == 0).all())

    # what modeling code calls

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """Write keys [B, H, T, D] and values of a layer; returns those of the slots, [B, H, length, D].

        In place it returns all that the cache has of the layer, [S, H, C, D].
        """
        kept = self.cache.keep(key_states, "key", layer_idx), self.cache.keep(value_states, "value", layer_idx)
        written = zip(kept, (key_states, value_states), strict=True)
        keys, values = (self._written(tensor, states) for tensor, states in written)
        return keys, values

    def update_indexer(self, indexer_key_states: Tensor, layer_idx: int) -> Tensor:
        """Write the keys [B, T, D] by which sparse attention chooses; returns those of the slots, [B, length, D]."""
        states = indexer_key_states.unsqueeze(1)
        return self._written(self.cache.keep(states, "indexer", layer_idx), states).squeeze(1)

    def _written(self, kept: Tensor, states: Tensor) -> Tensor:
        """Write [B, H, T, D] states of this forward's tokens, and read [B, H, length, D] of its slots."""
        kept = kept[:, :, : self.length]
        kept[self.slots[:, None], :, self.places] = states.transpose(1, 2)
        if self.is_in_place:
            return kept
        return kept[self.rows] if isinstance(self.rows, slice) else kept.index_select(0, self.rows)

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self.states.before(StateKey(CONV, layer_idx, state_idx))

    def update_conv_state(
        self,
        conv_states: Tensor,
        layer_idx: int,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **_: object,
    ) -> Tensor:
        """Take [B, C, T] inputs of a convolution in; returns them after those before."""
        width = conv_kernel_size or conv_states.shape[-1]
        return self.states.convolve(StateKey(CONV, layer_idx, state_idx), conv_states, width)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self.states.before(StateKey(RECURRENT, layer_idx, state_idx))

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **_: object
    ) -> Tensor:
        self.states.write(StateKey(RECURRENT, layer_idx, state_idx), recurrent_states)
        return recurrent_states

    def is_recording_past(self, layer_idx: int) -> bool:
        """Whether convolutions give their inputs to `update_conv_state`, instead of changing a state in place."""
        return True

    def get_query_offset(self, layer_idx: int = 0) -> Any:
        return self

    def __add__(self, other: object) -> NoReturn:
        raise TypeError(
            "expected modeling code that lets the mask functions of transformers place its queries, found some that "
            "computes with one offset of all rows"
        )

    __radd__ = __sub__ = __rsub__ = __add__

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.length, 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.length - self.positions.shape[1]

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return self.cache.capacity

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        return any(layer_idx in (None, key.layer) for key in self.cache.states)

    @property
    def is_sliding(self) -> Sequence[bool]:  # type: ignore[override]
        return [False] * len(self.layers)


def _nodes(tree: TreePlaces, places: Tensor) -> tuple[Tensor, Tensor]:
    """([B, 1, length] number of the node at each place, negative before the tree; [B, T, length] if it is seen)."""
    num_nodes = tree.sees.shape[-1]
    node = (places - tree.starts[:, None])[:, None, :]
    sees = tree.sees.expand(node.shape[0], -1, -1)
    own = sees.gather(2, node.clamp(0, num_nodes - 1).expand(-1, sees.shape[1], -1))
    return node, own & (node >= 0) & (node < num_nodes)
