"""What the next step does: which slots decode, which prompts it reads, and how that is laid out.

The plan is made on the host from what it knows for certain: results of the step under way are not needed. It does not
know tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import NamedTuple

from harness.engine.request import Limits
from harness.engine.sequence import Sequence

_SLOT = attrgetter("slot")


class Chunk(NamedTuple):
    """Tokens of one prompt that a step reads."""

    sequence: Sequence
    start: int
    stop: int

    @property
    def ends_prompt(self) -> bool:
        return self.stop == self.sequence.num_prompt_tokens


class StepPlan(NamedTuple):
    """One step."""

    decoding: tuple[Sequence, ...]
    """Sequences that draft and verify a round."""
    chunks: tuple[Chunk, ...]
    """In the order in which their requests were admitted."""
    may_be_constrained: bool
    """False only where no running request has one, which saves asking each of them in every step."""
    needs_host: bool = False
    """The host takes part between the drafts of the step and their verification."""
    depth: int | None = None
    """Drafts that a round of the step proposes; None for the engine's K, and where nothing decodes."""

    @property
    def deciding(self) -> list[Sequence]:
        """Sequences that a token of this step belongs to."""
        return [*self.decoding, *(chunk.sequence for chunk in self.chunks if chunk.ends_prompt)]

    @property
    def participants(self) -> list[Sequence]:
        return [*self.decoding, *(chunk.sequence for chunk in self.chunks)]

    @property
    def num_slots(self) -> int:
        """Slots 0.. that take part."""
        return max(map(_SLOT, self.participants)) + 1


class PrefillRoom(NamedTuple):
    """How the prompts of a step are laid out, and how much of them it reads."""

    max_tokens: int
    """Prompt tokens of the step, groups of rows rounded up."""
    group_tokens: int
    """Tokens of a group of rows; 0 reads every prompt in one piece, however long."""
    max_tokens_with_decodes: int | None = None
    """Prompt tokens of a step in which some request decodes, groups rounded down; None for no limit beyond
    max_tokens."""
    max_tokens_of_prompt: int | None = None
    """Tokens of one prompt that a step reads; None for no limit."""


def make_plan(
    running: Iterable[Sequence],
    limits: Limits,
    room_at: Callable[[int | None], PrefillRoom],
    choose_depth: Callable[[int], int] | None = None,
    may_be_constrained: bool = True,
    needs_host: bool = False,
) -> StepPlan | None:
    """The next step; None when no request can go on before the step under way has been read.

    A sequence that will have reached its length with what is under way does not decode again. Prompts are read in the
    order given, as many as the step has room for; the first one always gets a group of rows.

    Args:
        running: the sequences that occupy slots, in the order of their admission.
        limits: where requests end.
        room_at: for prompts, at a depth of the step's rounds (StepPlan.depth).
        choose_depth: of the rounds of so many requests, 1 or more; None where all have the engine's K.
        may_be_constrained, needs_host: see StepPlan.
    """
    waiting, decoding = [], []
    for sequence in running:
        if sequence.finish_reason is not None:
            continue
        if sequence.num_prefilled_tokens < sequence.num_prompt_tokens:
            waiting.append(sequence)
        elif sequence.min_output_tokens < limits.max_new_tokens:
            decoding.append(sequence)
    depth = choose_depth(len(decoding)) if choose_depth is not None and decoding else None
    max_tokens, group_tokens, limit, of_prompt = room_at(depth)
    if decoding and limit is not None:
        max_tokens = min(limit, max_tokens)
    chunks = _chunks(waiting, max_tokens, group_tokens, of_prompt)
    return StepPlan(tuple(decoding), chunks, may_be_constrained, needs_host, depth) if decoding or chunks else None


def _chunks(
    waiting: Iterable[Sequence], room: int, group_tokens: int, of_prompt: int | None = None
) -> tuple[Chunk, ...]:
    """The prompt tokens that a step reads; see make_plan."""
    chunks: list[Chunk] = []
    for sequence in waiting:
        left = sequence.num_tokens_to_prefill
        if of_prompt is not None:
            left = min(left, of_prompt)
        if group_tokens:
            left = min(left, max(room // group_tokens, 0 if chunks else 1) * group_tokens)
        elif chunks and left > room:
            left = room = 0
        if left:
            start = sequence.num_prefilled_tokens
            chunks.append(Chunk(sequence, start, start + left))
            room -= -(-left // group_tokens) * group_tokens if group_tokens else left
    return tuple(chunks)
