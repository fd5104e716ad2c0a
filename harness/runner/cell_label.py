"""What a cell is called while it runs: a few words for the display, and for what happens to it."""

from __future__ import annotations

from collections.abc import Sequence

from harness.config.cell import CellConfig
from harness.config.drafting import CacheDtype
from harness.config.guarantee import FP8_CACHE, FP8_WEIGHTS, RANDOM_WEIGHTS, SEVERAL_RANKS, labels

_MOST_NAMED = 3


def label(cell: CellConfig) -> str:
    """A cell in a few words."""
    told = FP8_WEIGHTS, FP8_CACHE, SEVERAL_RANKS
    named = [item for item in labels(cell) if RANDOM_WEIGHTS in item or item in told]
    weights = "".join(f" [{item}]" for item in named)
    weights += f" on {cell.server.engine.value}" if cell.is_served else ""
    if cell.is_baseline:
        return f"baseline T={cell.decoding.temperature:g}{weights}"
    num_tokens, method = cell.drafting.num_speculative_tokens, cell.verification.method.value
    cache = "" if cell.drafting.cache_dtype is CacheDtype.auto else f" {cell.drafting.cache_dtype.value}"
    cache += " unrounded" if cell.draws_unrounded else ""
    tree = "" if cell.drafting.tree is None else f" tree={cell.drafting.tree}"
    return f"{cell.drafter.kind.value} K={num_tokens}{tree} T={cell.decoding.temperature:g} {method}{cache}{weights}"


def label_of_several(cells: Sequence[CellConfig], num_cells: int) -> str:
    """Some of so many cells in words, of many the first."""
    if 1 < len(cells) == num_cells:
        return f"all {num_cells} cells"
    more = f"; {len(cells) - _MOST_NAMED} more" if len(cells) > _MOST_NAMED + 1 else ""
    return "; ".join(map(label, cells[:_MOST_NAMED] if more else cells)) + more


def failed_before(cells: Sequence[CellConfig], num_cells: int) -> str:
    """The line about cells that an earlier session left as failed."""
    them = "them" if len(cells) > 1 else "it"
    return f"failed before: {label_of_several(cells, num_cells)}; --retry-failed runs {them} again"
