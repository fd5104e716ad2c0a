"""Whether a cell's speed changed between the blocks of a run by more than its prompts explain: busy machine, or drift.

The cells of a run take turns, block by block of prompts, so that what changes slowly changes for all of them. Intervals
resample prompts and do not include changes of the machine; blocks reveal a change that hit two cells differently.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from harness.records.schema import CellRecord

if TYPE_CHECKING:
    from harness.metrics.cell import CellResult

FACTOR = 1.5
"""Of the width of the interval of a speedup. Where only prompts differ, two halves of them are 2 standard errors of the
whole apart by chance, and a 95 % interval is 3.9 wide: more than 1.5 widths come about 3 times in 1000."""


def block_drift(cell: CellResult) -> float | None:
    """By what share the speedup over the baseline differs between blocks, if it does by more than prompts explain.

    It does where the logarithms of the largest and the smallest block's ratio are further apart than FACTOR times the
    width of the interval of the whole ratio, in logarithms too, times sqrt(blocks / 2). None also where that cannot be
    said: no baseline, one block, turns left out, no interval, or blocks of several sessions.
    """
    if cell.baseline is None or cell.is_baseline:
        return None
    if len({*cell.record.sessions, *cell.baseline.record.sessions}) > 1:
        return None
    own, others = block_throughputs(cell.record), block_throughputs(cell.baseline.record)
    _, low, high = cell.speedup
    if len(own) < 2 or len(own) != len(others) or not 0 < low < high < math.inf:
        return None
    ratios = [mine / theirs for mine, theirs in zip(own, others, strict=True)]
    apart = max(ratios) / min(ratios)
    allowed = FACTOR * math.log(high / low) * math.sqrt(len(ratios) / 2)
    return apart - 1 if math.log(apart) > allowed else None


def block_throughputs(record: CellRecord) -> list[float]:
    """Output tokens per second of each block; empty where the blocks are not known, or turns were left out."""
    if record.num_skipped_turns:
        return []
    blocks = [(item.num_output_tokens, item.wall_s) for item in record.blocks] or _older_blocks(record)
    return [count / time for count, time in blocks] if all(count and time for count, time in blocks) else []


def _older_blocks(record: CellRecord) -> list[tuple[int, float]]:
    """Tokens and seconds of the engine's steps in each block of a record of schema 2.

    Blocks are equal shares of the conversations in the order of the records, as
    `harness.sweep.turns.interleave` runs them.
    """
    numbers: dict[tuple[str, int], int] = {}
    for item in record.requests:
        numbers.setdefault((item.prompt_id, item.sample), len(numbers))
    num_blocks = min(record.config.get("measurement", {}).get("num_blocks", 1), len(numbers))
    tokens, seconds = [0] * num_blocks, [0.0] * num_blocks
    ends = [len(numbers) * (block + 1) // num_blocks for block in range(num_blocks)]
    for item in record.requests:
        number = numbers[item.prompt_id, item.sample]
        block = next(index for index, end in enumerate(ends) if number < end)
        tokens[block] += item.num_output_tokens
        seconds[block] += sum(each.share_s for each in item.rounds)
    return list(zip(tokens, seconds, strict=True))
