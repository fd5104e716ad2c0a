"""The key-value cache of the local engine: one slot per request, each with its own length.

A view of the cache (some slots, the positions of this forward's tokens) is what attention modules of transformers get
as `past_key_values`. Keys and values go to (slot, place). The tokens of a chain lie at their positions, and a query
sees the places up to its own. So padding needs no mask of its own: a padding token takes the places after the last
valid one, no valid query looks there before something valid has been written, and rolling back rejected tokens is only
lowering a length, which the engine keeps. The nodes of a tree share positions and lie at places of their own; a query
sees what came before the tree and its own ancestors. The cache does not know lengths, tokens or requests.

Shapes: S slots, C capacity of a slot, B rows of a forward, T tokens of a row, H key heads, D width of a head's key, V
of its value.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from harness.models.fp8_linear import FP8, to_fp8
from harness.models.fused.row_groups import GroupedRows, RowGroups
from harness.models.fused.tree_rows import TreeRows
from harness.models.tree_places import TreePlaces, tree_mask

if TYPE_CHECKING:
    from harness.models.decoder_layer import View


class TargetCache(Protocol):
    """What the engine and drafters need of the cache of a language model; see SlotCache for what each part does."""

    num_slots: int
    capacity: int
    dtype: torch.dtype
    slot_ids: Tensor

    @property
    def num_bytes(self) -> int: ...

    def view(
        self,
        rows: slice | Tensor,
        positions: Tensor,
        length: int,
        tree: TreePlaces | None = None,
        groups: RowGroups | None = None,
    ) -> View: ...

    def keep_path(self, rows: slice | Tensor, starts: Tensor, path: Tensor) -> None: ...

    def clear(self, rows: slice | Tensor) -> None: ...

    def move(self, source: int, destination: int) -> None: ...


class SlotView:
    """Some slots of a cache, for one forward."""

    def __init__(
        self,
        cache: SlotCache,
        rows: slice | Tensor,
        # [B, T] int64
        positions: Tensor,
        length: int,
        tree: TreePlaces | None = None,
        groups: RowGroups | None = None,
    ) -> None:
        self._cache = cache
        self._rows = rows
        self._positions = positions
        self._length = length
        self._tree = tree
        self._groups = groups
        self.rope_table = cache.rope_table
        """See SlotCache."""
        self.slots = cache.slot_ids[rows] if isinstance(rows, slice) else rows
        """[B] int64, the slot of each row."""

    @cached_property
    def starts(self) -> Tensor:
        """[B] int64 without gaps, the place of each row's first token; that of a chain's is its position."""
        places = self._positions if self._tree is None else self._tree.absolute
        return places[:, 0].contiguous()

    @cached_property
    def tree_rows(self) -> TreeRows | None:
        """What fused layers need of trees, whose tokens lie one after the other."""
        return None if self._tree is None else TreeRows.of(self._tree.sees, self._positions)

    @cached_property
    def grouped_rows(self) -> GroupedRows | None:
        """What fused layers need of rows that belong together."""
        return None if self._groups is None else GroupedRows.of(self._groups, self.slots, self.starts)

    @cached_property
    def mask(self) -> Tensor:
        """[B, 1, T, length], additive: 0 where the query sees the key, -inf elsewhere."""
        if self._tree is None:
            return causal_mask(self._positions, self._length, self._cache.dtype)
        return tree_mask(self._tree, self._length, self._cache.dtype)

    def layer(self, layer_idx: int) -> tuple[Tensor, Tensor]:
        """One layer's keys and values in the cache, [S, H, C, D] and [S, H, C, V]: of all slots, at full length."""
        return self._cache.keys[layer_idx], self._cache.values[layer_idx]

    @cached_property
    def _index(self) -> tuple[Tensor, Tensor, Tensor]:
        """Of a scatter by (slot, head, place): the three broadcast to [B, H, T]."""
        places = self._positions if self._tree is None else self._tree.absolute
        return self.slots[:, None, None], self._cache.head_ids[None, :, None], places[:, None, :]

    def update(
        self,
        # [B, H, T, D]
        key: Tensor,
        # [B, H, T, V]
        value: Tensor,
        layer_idx: int,
        *_: object,
    ) -> tuple[Tensor, Tensor]:
        """Write one layer's keys and values.

        Returns those that its queries may attend to, [B, H, length, D] and [B, H, length, V].
        """
        keys, values = (tensor[:, :, : self._length] for tensor in self.layer(layer_idx))
        rounds = keys.dtype is FP8
        keys.index_put_(self._index, to_fp8(key) if rounds else key)
        if values.shape[-1]:
            values.index_put_(self._index, to_fp8(value) if rounds else value)
        if isinstance(self._rows, slice):
            keys, values = keys[self._rows], values[self._rows]
        else:
            keys, values = keys.index_select(0, self._rows), values.index_select(0, self._rows)
        return (keys.to(key.dtype), values.to(key.dtype)) if rounds else (keys, values)


class SlotCache:
    """Keys and values of all layers for a fixed number of slots of a fixed capacity.

    num_layers, num_slots, num_key_value_heads, head_dim: sizes; capacity: positions a slot can hold.
    value_dim: V where it is not head_dim; 0 where values are part of the keys, as in latent attention.
    rope_table: of harness.models.fused.rope_table, for layers that run through the fused operations; None for layers
    that run as transformers has them.
    stored_dtype: of keys and values as they are kept, where it is not `dtype`, in which layers compute: FP8 of
    harness.models.fp8_linear, to which they are rounded.
    """

    def __init__(
        self,
        num_layers: int,
        num_slots: int,
        capacity: int,
        num_key_value_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | str,
        value_dim: int | None = None,
        rope_table: Tensor | None = None,
        stored_dtype: torch.dtype | None = None,
    ) -> None:
        places = (num_slots, num_key_value_heads, capacity)
        widths = (head_dim, head_dim if value_dim is None else value_dim)
        # Zeros, not empty memory: a masked key has weight 0, and 0 times a NaN found there is NaN.
        kept = stored_dtype or dtype
        self._tensors = tuple(torch.zeros(num_layers, *places, width, dtype=kept, device=device) for width in widths)
        """[layers, S, H, C, D] and [layers, S, H, C, V], so that one operation moves what all layers hold."""
        # detached: layers write to them also where gradients are on, as memory of their own would be
        self.keys, self.values = ([layer.detach() for layer in tensor] for tensor in self._tensors)
        self.slot_ids = torch.arange(num_slots, device=device)
        self.head_ids = torch.arange(num_key_value_heads, device=device)
        self.num_slots = num_slots
        self.capacity = capacity
        self.dtype = dtype
        self.rope_table = rope_table

    @property
    def num_bytes(self) -> int:
        """Memory of all keys and values."""
        return sum(tensor.nbytes for tensor in self._tensors)

    def view(
        self,
        rows: slice | Tensor,
        # [B, T] int64
        positions: Tensor,
        length: int,
        tree: TreePlaces | None = None,
        groups: RowGroups | None = None,
    ) -> SlotView:
        """The slots of one forward.

        Args:
            rows: the slots, as a slice (keys are then read in place) or as an int64 tensor [B] (they are gathered).
            positions: the absolute position of each token.
            length: the highest place plus 1, known on the host; the place of a chain's token is its position.
            tree: where tokens that are nodes of trees lie, and what they see; None for chains.
            groups: rows that fused attention reads together; None where each stands alone.

        Raises:
            ValueError: the slots cannot hold that length, or the rows do not fit the positions.
        """
        if not 0 < length <= self.capacity:
            raise ValueError(
                f"slots hold {self.capacity} positions, found a forward that needs {length}; "
                f"make the cache with a larger capacity or cut the sequence"
            )
        num_rows = len(range(*rows.indices(self.num_slots))) if isinstance(rows, slice) else rows.shape[0]
        if num_rows != positions.shape[0]:
            raise ValueError(
                f"expected positions of {num_rows} rows (of {self.num_slots} slots), found {list(positions.shape)}"
            )
        return SlotView(self, rows, positions, length, tree, groups)

    def keep_path(
        self,
        rows: slice | Tensor,
        # [B] int64
        starts: Tensor,
        # [B, D] int64
        path: Tensor,
    ) -> None:
        """Let the nodes of an accepted path lie one after the other in their slots, as a chain's tokens do.

        Args:
            rows: the slots, as `view` takes them.
            starts: place of node 0 of each row.
            path: accepted nodes, the root's child first; -1 beyond them, where everything stays as it is.
        """
        steps = torch.arange(path.shape[1], device=path.device)
        slots = self.slot_ids[rows] if isinstance(rows, slice) else rows
        rows, heads = slots[:, None, None], self.head_ids[None, :, None]
        found = (starts[:, None] + torch.where(path < 0, steps, path))[:, None, :]
        wanted = (starts[:, None] + steps)[:, None, :]
        for tensor in self._tensors:
            if tensor.shape[-1]:
                # the nodes are read before the first is written
                tensor[:, rows, heads, wanted] = tensor[:, rows, heads, found]

    def clear(self, rows: slice | Tensor) -> None:
        """Zero some slots: only needed after a model produced NaN there, which masking does not hide."""
        for tensor in self._tensors:
            tensor[:, rows] = 0

    def move(self, source: int, destination: int) -> None:
        """Let one slot hold all that another one does."""
        for tensor in self._tensors:
            tensor[:, destination] = tensor[:, source]


def causal_mask(
    # [B, T] int64
    positions: Tensor,
    length: int,
    dtype: torch.dtype,
) -> Tensor:
    """[B, 1, T, length], additive: 0 for keys up to each query's position, -inf after it."""
    hidden = torch.arange(length, device=positions.device) > positions[:, None, :, None]
    return torch.zeros(hidden.shape, dtype=dtype, device=positions.device).masked_fill_(hidden, float("-inf"))
