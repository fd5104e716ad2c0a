"""Cells of a run that differ in their engine alone, and how fast one is beside the other, block by block.

This module knows records and settings; it does not know how a comparison is printed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from harness.analysis.cell import CellResult
from harness.analysis.estimates import Estimate
from harness.analysis.intervals import MIN_BLOCKS, mean_interval
from harness.config.backend import OF_LOCAL
from harness.records.schema import CLIENT_CPU, Block, CellRecord

LOCAL = "local"
OF_ENGINE = (
    *("backend.kind", "backend.device", "backend.dtype", "backend.max_length", *sorted(OF_LOCAL)),
    *("server", "constraint.drafts", "measurement", "device", "dtype"),
)
"""Settings of an engine's own, and what a run resolved: cells that differ in them do the same work."""


class EnginePair(NamedTuple):
    """The same work on two engines."""

    own: CellResult
    """On this project's engine, where one of them is it."""
    peer: CellResult


class BlockPair(NamedTuple):
    """The same conversations on two engines, in one session."""

    own: Block
    peer: Block

    @property
    def ratio(self) -> float:
        """Output tokens per second of the first over those of the second."""
        own, peer = (block.num_output_tokens / block.wall_s for block in self)
        return own / peer


def engine_pairs(cells: Sequence[CellResult]) -> list[EnginePair]:
    """Every cell on this project's engine with each that does the same work on another, failed ones too.

    Args:
        cells: of any runs; those of two runs are no pair. Where none is of this engine, the first one's is compared
            with the others.
    """
    found: dict[str, list[CellResult]] = {}
    for cell in cells:
        found.setdefault(cell.key_without(*OF_ENGINE), []).append(cell)
    pairs = []
    for alike in found.values():
        engine = LOCAL if any(cell["engine"] == LOCAL for cell in alike) else alike[0]["engine"]
        own, peers = ([cell for cell in alike if (cell["engine"] == engine) is is_own] for is_own in (True, False))
        pairs += [EnginePair(cell, peer) for cell in own for peer in peers]
    return pairs


def block_pairs(pair: EnginePair) -> list[BlockPair]:
    """The blocks that both played whole and in the same session, without a request that failed."""
    own, peer = (_whole_blocks(cell.record) for cell in pair)
    both = [BlockPair(own[index], peer[index]) for index in sorted(own.keys() & peer.keys())]
    return [
        item
        for item in both
        if item.own.session == item.peer.session and item.own.num_requests == item.peer.num_requests
    ]


def _whole_blocks(record: CellRecord) -> dict[int, Block]:
    """Block by its place, without those in several parts, and without those that ended nothing."""
    found: dict[int, list[Block]] = {}
    for block in record.blocks:
        found.setdefault(block.index, []).append(block)
    return {
        index: parts[0]
        for index, parts in found.items()
        if len(parts) == 1 and parts[0].num_output_tokens and parts[0].wall_s
    }


def ratio_by_blocks(pair: EnginePair) -> Estimate:
    """Geometric mean of the blocks' ratios of throughput, with Student's t interval of their logarithms.

    Unlike an interval over prompts it holds what changes from block to block, the machine included. Without a pair of
    blocks it is nan.
    """
    ratios = np.log([item.ratio for item in block_pairs(pair)])
    if not len(ratios):
        return Estimate(math.nan, math.nan, math.nan)
    low, high = math.nan, math.nan
    if len(ratios) >= MIN_BLOCKS:
        low, high = mean_interval(ratios, pair.own.estimates.confidence)
    return Estimate(*(math.exp(item) for item in (float(ratios.mean()), low, high)))


def client_share(record: CellRecord) -> float:
    """Time of this process on a core while a server answered it, over the wall time; nan where none did."""
    wall_s = sum(block.wall_s for block in record.blocks)
    cpu_s = [block.reported[CLIENT_CPU] for block in record.blocks if CLIENT_CPU in block.reported]
    return sum(cpu_s) / wall_s if cpu_s and wall_s else math.nan
