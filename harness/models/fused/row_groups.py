"""Rows of a forward that attention reads together, as the fused operations take them.

A row reads all keys of its slot up to its own tokens. Rows of one slot that follow one another are one longer row to
attention, which then reads these keys once for all of them.

Shapes: R rows, T tokens of a row, M rows of a group, G groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from harness.models.fused.tree_rows import TreeRows


class RowGroups(NamedTuple):
    """Which rows belong together."""

    first: int
    """Rows before it stand alone; from it on every M rows are of one slot, each where the one before it ends. They hold
    tokens of chains, also beside rows that are trees."""
    size: int
    """M."""


class AttentionCall(NamedTuple):
    """Rows of one length for attention."""

    queries: Tensor
    """[rows, tokens, ...]."""
    slots: Tensor
    """[rows] int64."""
    starts: Tensor
    """[rows] int64."""
    tree: TreeRows | None
    out: Tensor
    """[rows, tokens, ...], where the result goes."""


class GroupedRows(NamedTuple):
    """The groups of a forward."""

    first: int
    """See RowGroups."""
    slots: Tensor
    """[G] int64."""
    starts: Tensor
    """[G] int64, the place of each group's first token."""

    @classmethod
    def of(cls, groups: RowGroups, slots: Tensor, starts: Tensor) -> GroupedRows:
        """From the slot and start of each row, [R] int64."""
        # memory of their own, also of a single one: kernels are compiled for where a tensor begins
        firsts = (each[groups.first :: groups.size] for each in (slots, starts))
        return cls(groups.first, *(each.clone(memory_format=torch.contiguous_format) for each in firsts))

    def calls(
        self, queries: Tensor, slots: Tensor, starts: Tensor, out: Tensor, tree: TreeRows | None = None
    ) -> Iterator[AttentionCall]:
        """The rows that stand alone, if there are any, then each group as one row of M T tokens.

        Args:
            queries: [R, T, ...] without gaps.
            slots, starts: [R] int64.
            out: [R, T, ...] without gaps, where the results go.
            tree: of rows that are nodes of trees, [R, T].
        """
        first, num_groups = self.first, len(self.slots)
        if first:
            alone = None if tree is None else tree._replace(seen=tree.seen[:first], positions=tree.positions[:first])
            yield AttentionCall(queries[:first], slots[:first], starts[:first], alone, out[:first])
        grouped = (each[first:].view(num_groups, -1, *each.shape[2:]) for each in (queries, out))
        yield AttentionCall(next(grouped), self.slots, self.starts, None, next(grouped))
