"""What the device knows of the slots, and what the host tells it before a step.

Shapes: S slots, B of them that take part (slots 0..B - 1), R rows of prompts, W tokens of such a row, C capacity of a
slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.contract import ANY_TOKEN, NO_TOKEN

NOT_DECIDING, DECODES, ENDS_PROMPT = 0, 1, 2
"""What a slot does in a step: nothing that emits a token, a round of drafts, or the end of its prompt."""
MAX_ENDING_TOKENS = 4
"""Tokens by which the device finds the end of reasoning; a longer ending is found by its last ones."""


class SlotState:
    """What the device knows of the slots. One more than there are takes the tokens that nobody wants."""

    def __init__(self, num_slots: int, capacity: int, device: torch.device) -> None:
        self.spare = num_slots
        self.token_ids = torch.zeros(num_slots + 1, capacity, dtype=torch.int64, device=device)
        """[S + 1, C], every token so far; the last one has not been read by the target."""
        # an empty slot has a token, so that rows without a request have something to read
        self.lengths = torch.ones(num_slots, dtype=torch.int64, device=device)
        self.seeds = torch.zeros_like(self.lengths)
        self.rounds = torch.zeros_like(self.lengths)
        self.endings = torch.full((num_slots, MAX_ENDING_TOKENS), NO_TOKEN, dtype=torch.int64, device=device)
        """[S, M], see `ending_row`."""


def ending_row(ending: Sequence[int] | None) -> list[int]:
    """What `SlotState.endings` holds of a slot: the last M tokens of every end of its reasoning.

    None: no step is deferred for it.
    """
    last = [NO_TOKEN] if ending is None else list(ending[-MAX_ENDING_TOKENS:])
    return [ANY_TOKEN] * (MAX_ENDING_TOKENS - len(last)) + last


class PromptPart(NamedTuple):
    """Tokens of prompts that a step reads: rows of equal width."""

    slots: Tensor
    """[R] int64; several rows may be of one slot."""
    starts: Tensor
    """[R] int64, position of each row's first token."""
    token_ids: Tensor
    """[R, W + 1] int64: W tokens that are read, and the one after them where it is known."""
    length: int
    """Highest position + 1."""


class StepInputs(NamedTuple):
    """What the host says before a step."""

    slots: Tensor
    """[5, B] int64, the fields below."""
    prompts: tuple[PromptPart, ...]
    length: int
    """Highest position among the decoding rows + 1, or a bound of it."""

    @property
    def decides(self) -> Tensor:
        """[B] NOT_DECIDING, DECODES or ENDS_PROMPT."""
        return self.slots[0]

    @property
    def ends(self) -> Tensor:
        """[B] number, among the step's tokens, of the last prompt token of a slot that ENDS_PROMPT."""
        return self.slots[1]

    @property
    def begins(self) -> Tensor:
        """[B] 1 for a slot that begins a request in this step."""
        return self.slots[2]

    @property
    def seeds(self) -> Tensor:
        """[B] of the requests that begin."""
        return self.slots[3]

    @property
    def lengths(self) -> Tensor:
        """[B] prompt tokens of the requests that begin."""
        return self.slots[4]
