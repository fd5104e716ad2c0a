"""How many tokens the rounds of the next step draft.

The choice is made on the host before the step begins, from what steps that were read have told: it depends on no draft
that it leaves out, so that lossless methods stay lossless (kernels.depth). This module does not know tensors.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from harness.settings.depth import DepthTable, depth_at


class Depth(Protocol):
    """Chooses the depth of every step of an engine."""

    def choose(self, num_requests: int) -> int:
        """Drafts of each round of the next step, in which so many requests decode (1 or more)."""
        ...

    def choices(self, num_requests: int) -> Collection[int]:
        """What `choose` may say while so many requests, or fewer, decode."""
        ...


class DepthByBatch:
    """Takes the depth from a table of batch sizes."""

    def __init__(self, table: DepthTable) -> None:
        self._table = table

    def choose(self, num_requests: int) -> int:
        return depth_at(self._table, num_requests)

    def choices(self, num_requests: int) -> set[int]:
        return {depth for size, depth in self._table if size <= num_requests}
