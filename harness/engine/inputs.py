"""From a plan to the tensors of a step.

Two layouts: in pieces, where the prompts of a step are padded to the longest of them, each batch of similar ones a
forward of its own; and in rows, where a prompt is cut into rows as wide as a decoding row, so that everything runs in
one forward of few different sizes. The second is what CUDA graphs need, whose sizes are fixed. There the rows of a
prompt come in whole groups (row_groups).

Shapes: B slots that take part, d drafts of a round of the step, T = d + 1 tokens of a row.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from harness.engine.row_groups import rows_of_group, tokens_of_group
from harness.engine.slots import DECODES, ENDS_PROMPT, NOT_DECIDING, PromptPart, StepInputs
from harness.engine.step_plan import Chunk, StepPlan
from harness.models.fused.row_groups import RowGroups

Integers = npt.NDArray[np.int64]
MAX_PADDING_ON_CPU = 16
"""Tokens by which the prompts of a forward may be padded on a CPU, in all: more cost as much as a forward more."""


def in_pieces(plan: StepPlan, depth: int, max_tokens: int, device: torch.device, is_padded: bool = True) -> StepInputs:
    """The inputs of a step whose prompts are read in one piece each, and whose rounds draft so many tokens.

    is_padded: whether prompts of different lengths may be read together.
    """
    num_slots = plan.num_slots
    parts, ends = [], {}
    first = num_slots * (depth + 1) if plan.decoding else 0
    max_padding = MAX_PADDING_ON_CPU if device.type == "cpu" else max_tokens
    if not is_padded:
        max_padding = 0
    for batch in _batches(plan.chunks, max_tokens, max_padding):
        longest = max(chunk.stop - chunk.start for chunk in batch)
        for row, chunk in enumerate(batch):
            ends[chunk.sequence.slot] = first + row * longest + chunk.stop - chunk.start - 1
        parts.append(_prompt_part(batch, longest, device))
        first += len(batch) * longest
    fields = np.zeros((5, num_slots), dtype=np.int64)
    _write_fields(fields, plan, ends)
    slots = torch.from_numpy(fields).to(device)
    length = _longest(plan) + depth
    return StepInputs(slots, tuple(parts), length, bool(plan.decoding), depth)


def in_rows(
    plan: StepPlan, depth: int, num_slots: int, num_prompt_rows: int, spare: int, is_grouped: bool = True
) -> Integers:
    """The inputs of a step of a fixed size, on the host.

    Args:
        plan: of at most that size.
        depth: d, of the step's rounds.
        num_slots, num_prompt_rows: the size, B and P.
        spare: slot of the rows that are left over.
        is_grouped: whether rows of prompts come in groups; else each stands alone.

    Returns:
        [5 * B + P * (2 + T + 1)], in parts: see `fields_and_rows`.
    """
    width = depth + 1
    group = tokens_of_group(width) if is_grouped else width
    rows: list[list[int]] = []
    ends = {}
    for chunk in plan.chunks:
        slot, start, num_tokens = chunk.sequence.slot, chunk.start, chunk.stop - chunk.start
        num_places = -(-num_tokens // group) * group
        tokens = [*chunk.sequence.request.token_ids[start : chunk.stop + 1]]
        tokens += [0] * (num_places + 1 - len(tokens))
        if chunk.ends_prompt:
            ends[slot] = (num_slots + len(rows)) * width + num_tokens - 1
        rows += [[slot, start + at, *tokens[at : at + width + 1]] for at in range(0, num_places, width)]
    assert len(rows) <= num_prompt_rows
    values = np.zeros(num_input_values(depth, num_slots, num_prompt_rows), dtype=np.int64)
    _write_fields(values[: 5 * num_slots].reshape(5, num_slots), plan, ends)
    if num_prompt_rows:
        rows += [[spare, 0, *[0] * (width + 1)] for _ in range(num_prompt_rows - len(rows))]
        values[5 * num_slots :] = np.array(rows, dtype=np.int64).ravel()
    return values


def num_input_values(depth: int, num_slots: int, num_prompt_rows: int) -> int:
    """Integers that `in_rows` gives."""
    return 5 * num_slots + num_prompt_rows * (depth + 4)


def fields_and_rows(values: Tensor, depth: int, num_slots: int, num_prompt_rows: int) -> tuple[Tensor, Tensor]:
    """The parts of what `in_rows` gave, as views.

    Returns:
        ([5, B] fields of slots in the order of StepInputs; [P, 2 + T + 1] slot, start and tokens of each row, the one
        after them included).
    """
    return values[: 5 * num_slots].view(5, num_slots), values[5 * num_slots :].view(num_prompt_rows, depth + 4)


def num_rows(plan: StepPlan, depth: int, is_grouped: bool = True) -> int:
    """Rows that the prompts of a plan need; see `in_rows`."""
    if not plan.chunks:
        return 0
    group = tokens_of_group(depth + 1) if is_grouped else depth + 1
    return sum(-(-(chunk.stop - chunk.start) // group) for chunk in plan.chunks) * (group // (depth + 1))


def step_inputs(
    slots: Tensor, rows: Tensor, length: int, depth: int | None = None, is_grouped: bool = True
) -> StepInputs:
    """What `in_rows` made, once it lies on the device; for `depth` see StepInputs."""
    if not len(rows):
        return StepInputs(slots, (), length, depth=depth)
    size = rows_of_group(rows.shape[1] - 3) if is_grouped else 1
    groups = RowGroups(first=0, size=size) if size > 1 else None
    prompts = PromptPart(rows[:, 0], rows[:, 1], rows[:, 2:], length, groups)
    return StepInputs(slots, (prompts,), length, depth=depth)


def _write_fields(fields: Integers, plan: StepPlan, ends: dict[int, int]) -> None:
    """Write the fields of StepInputs.slots, [5, B], where there are zeros."""
    assert NOT_DECIDING == 0
    fields[0, [sequence.slot for sequence in plan.decoding]] = DECODES
    for chunk in plan.chunks:
        slot = chunk.sequence.slot
        if chunk.ends_prompt:
            fields[:2, slot] = ENDS_PROMPT, ends[slot]
        if chunk.start == 0:
            fields[2:, slot] = 1, chunk.sequence.request.seed, chunk.sequence.num_prompt_tokens


def _longest(plan: StepPlan) -> int:
    """A bound of the number of tokens of the sequences that decode."""
    return max((sequence.longest_length for sequence in plan.decoding), default=1)


def _prompt_part(batch: SequenceOf[Chunk], width: int, device: torch.device) -> PromptPart:
    return PromptPart(
        torch.tensor([chunk.sequence.slot for chunk in batch], device=device),
        torch.tensor([chunk.start for chunk in batch], device=device),
        torch.tensor([_tokens(chunk, chunk.start, width) for chunk in batch], device=device),
        max(chunk.start for chunk in batch) + width,
    )


def _tokens(chunk: Chunk, start: int, width: int) -> list[int]:
    """The `width` tokens of a prompt from `start` on and the one after them, with zeros beyond the prompt."""
    tokens = list(chunk.sequence.request.token_ids[start : min(start + width, chunk.stop) + 1])
    return tokens + [0] * (width + 1 - len(tokens))


def _batches(chunks: SequenceOf[Chunk], max_tokens: int, max_padding: int) -> list[list[Chunk]]:
    """Batches of similar length, each of at most so many tokens and so much padding, unless it is a single prompt."""
    batches: list[list[Chunk]] = []
    num_tokens = 0
    for chunk in sorted(chunks, key=lambda item: item.stop - item.start):
        # ascending order: the newcomer is the longest of its batch
        length = chunk.stop - chunk.start
        padded = (len(batches[-1]) + 1) * length if batches else 0
        if batches and padded <= max_tokens and padded - num_tokens - length <= max_padding:
            batches[-1].append(chunk)
            num_tokens += length
        else:
            batches.append([chunk])
            num_tokens = length
    return batches
