"""The state of the slots on the device, and the host's input before a step.

Shapes: S slots, B of them that take part (slots 0..B - 1), R rows of prompts, W tokens of such a row, C capacity of a
slot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from harness.config.sampling import SamplingSettings
from harness.engine.settings import EngineSettings
from harness.engine.slot_edits import SlotEdits
from harness.models.fused.row_groups import RowGroups
from kernels.contract import ANY_TOKEN, NO_TOKEN, Sampling, Slots

NOT_DECIDING, DECODES, ENDS_PROMPT = 0, 1, 2
"""What a slot does in a step: nothing that emits a token, a round of drafts, or the end of its prompt."""
MAX_ENDING_TOKENS = 4
"""Tokens by which the device finds the end of reasoning; a longer ending is found by its last ones."""


class SlotState:
    """The state of the slots on the device. One spare slot receives the writes of padding rows."""

    def __init__(
        self,
        num_slots: int,
        capacity: int,
        sampling: SlotSampling,
        device: torch.device,
        edits: SlotEdits | None = None,
    ) -> None:
        self.spare = num_slots
        # constants of idle slots on the device: torch.where with a number of Python launches a fill each time
        self.spare_id = torch.full((1,), num_slots, dtype=torch.int64, device=device)
        self.idle_length = torch.ones(1, dtype=torch.int64, device=device)
        self.sampling, self.edits = sampling, edits
        self.token_ids = torch.zeros(num_slots + 1, capacity, dtype=torch.int64, device=device)
        """[S + 1, C], every token so far; the last one has not been read by the target."""
        # an empty slot has a token, so that rows without a request have something to read
        self.lengths = torch.ones(num_slots, dtype=torch.int64, device=device)
        self.seeds = torch.zeros_like(self.lengths)
        self.rounds = torch.zeros_like(self.lengths)
        self.endings = torch.full((num_slots, MAX_ENDING_TOKENS), NO_TOKEN, dtype=torch.int64, device=device)
        """[S, M], see `ending_row`."""

    def changed_by_rounds(self) -> Slots:
        """What a round changes."""
        return Slots(self.token_ids, self.lengths, self.rounds, self.spare)

    def move(self, source: int, destination: int) -> None:
        """Let one slot hold all that another one does."""
        for tensor in (self.token_ids, self.lengths, self.seeds, self.rounds, self.endings):
            tensor[destination] = tensor[source]
        self.sampling.move(source, destination)
        if self.edits is not None:
            self.edits.move(source, destination)

    def write(self, requests: Mapping[int, SamplingSettings | None]) -> None:
        """Write the settings of requests that begin, by slot; see SlotSampling and SlotEdits.

        Raises:
            ValueError: see there; or a request changes logits, and the engine was built for requests that do not.
        """
        self.sampling.write(requests)
        if self.edits is not None:
            self.edits.write(requests)
            return
        for own in requests.values():
            if own is not None and own.edits:
                raise ValueError(
                    "a request's sampling: expected none that changes logits (EngineSettings.num_fixed_tokens), found "
                    f"{own.edits}"
                )


class SlotSampling:
    """The sampling parameters of the slots on the device, in memory that stays where it is.

    They are copied there when a slot takes a request whose parameters differ from those in it: never, where all
    requests share the default. Where some requests cut their distribution and others do not (`is_mixed`), a GPU gives
    each kind the kernels of a batch of its own; a step then launches both, and a slot costs what it costs alone.
    """

    def __init__(self, settings: EngineSettings, device: torch.device) -> None:
        self._default = default = settings.sampling
        given = settings.truncates
        self._is_mixed = settings.is_mixed
        self._truncates = self._is_mixed or (default.truncates if given is None else given)
        # every field begins at a multiple of 16 bytes, which kernels are specialized for
        self._given = [default] * (-(-settings.num_slots // 16) * 16)
        """What the device holds."""
        self._memory = _packed(self._given).to(device)
        num_places = len(self._given)
        self._top_k = self._memory[: 8 * num_places].view(torch.int64)
        floats = self._memory[8 * num_places :].view(torch.float32)
        self._temperature, self._top_p, self._min_p = floats.view(3, num_places)

    def rows(self, num_rows: int) -> Sampling:
        """Fields [num_rows] of the first slots; views of the memory."""
        rows = slice(0, num_rows)
        return Sampling(
            self._temperature[rows],
            self._top_k[rows],
            self._top_p[rows],
            self._min_p[rows],
            self._truncates,
            self._is_mixed,
        )

    def write(self, requests: Mapping[int, SamplingSettings | None]) -> None:
        """Write the parameters of requests that begin, by slot, after everything launched so far.

        Raises:
            ValueError: one cuts its distribution, and the engine was built for requests that do not.
        """
        before = list(self._given)
        for slot, own in requests.items():
            self._given[slot] = given = own or self._default
            if given.truncates and not self._truncates:
                raise ValueError(
                    f"a request's sampling: expected none that cuts (EngineSettings.truncates), found {given}"
                )
        if self._given != before:
            source = _packed(self._given)
            if self._memory.is_cuda:
                source = source.pin_memory()
            self._memory.copy_(source, non_blocking=True)

    def move(self, source: int, destination: int) -> None:
        """Give one slot the parameters of another."""
        self.write({destination: self._given[source]})


def _packed(settings: Sequence[SamplingSettings]) -> Tensor:
    """[S * 20] uint8: S int64 of top_k, then S float32 each of temperature, top_p and min_p."""
    integers = torch.tensor([each.top_k for each in settings], dtype=torch.int64)
    names = ("temperature", "top_p", "min_p")
    floats = torch.tensor([[getattr(each, name) for each in settings] for name in names], dtype=torch.float32)
    return torch.cat([integers.view(torch.uint8), floats.flatten().view(torch.uint8)])


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
    groups: RowGroups | None = None
    """Rows that attention reads together, from the first on; None where each stands alone."""


class StepInputs(NamedTuple):
    """The host's input before a step."""

    slots: Tensor
    """[5, B] int64, the fields below."""
    prompts: tuple[PromptPart, ...]
    length: int
    """Highest position among the decoding rows + 1, or a bound of it."""
    has_rounds: bool = True
    """False where no slot decodes and the step reads prompts alone: K is then 0, whatever the step's own."""
    depth: int | None = None
    """Drafts that a round of the step proposes; None for the step's own K."""

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

    def with_ends(self, ends: Tensor) -> StepInputs:
        """The same with other `ends`."""
        return self._replace(slots=torch.stack([self.decides, ends, self.begins, self.seeds, self.lengths]))
