"""What changes the target rows of the slots, on the device: penalties, biases, tokens that must not come yet.

Where no request of an engine has any of it there is no such thing, and a step runs without it. The settings of a
request are copied to the device when a slot takes it; which tokens its text has, the kernels keep there
(kernels.edit_logits), so that nothing waits for the host.

Shapes: S slots, F tokens of a request at most that have a bias or end it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from harness.config.sampling import SamplingSettings
from harness.engine.settings import EngineSettings
from kernels.contract import LogitEdits, Texts, TokenTally


class SlotEdits:
    """The edits of the slots in memory that stays where it is, and the tokens of their texts."""

    def __init__(self, settings: EngineSettings, num_fixed: int, device: torch.device) -> None:
        """num_fixed: F."""
        self._default, self._ends = settings.sampling, settings.limits.eos_token_ids
        self._num_fixed = max(num_fixed, 1)
        # every field begins at a multiple of 16 bytes, which kernels are specialized for
        self._given = [self._default] * (-(-settings.num_slots // 16) * 16)
        """What the device holds."""
        self._memory = self._packed(self._given).to(device)
        size = self._num_fixed + settings.capacity + settings.num_speculative_tokens
        self.tally = TokenTally.empty(settings.num_slots, size, device)
        self.prompt_lengths = torch.zeros(settings.num_slots, dtype=torch.int64, device=device)

    def rows(self, num_rows: int) -> LogitEdits:
        """Of the first slots; views of the memory."""
        num_slots, num_fixed = len(self._given), self._num_fixed
        min_tokens = self._memory[: 8 * num_slots].view(torch.int64)
        strengths = self._memory[8 * num_slots : 20 * num_slots].view(torch.float32).view(3, num_slots)
        of_tokens = self._memory[20 * num_slots : (20 + 8 * num_fixed) * num_slots].view(torch.int32)
        token_ids, biases = of_tokens.view(2, num_slots, num_fixed)
        ends = self._memory[(20 + 8 * num_fixed) * num_slots :].view(torch.bool).view(num_slots, num_fixed)
        fields = *strengths, min_tokens, token_ids, biases.view(torch.float32), ends
        return LogitEdits(*fields).rows(num_rows)

    def texts(self, token_ids: Tensor, lengths: Tensor) -> Texts:
        """The texts of the slots."""
        return Texts(token_ids, lengths, self.prompt_lengths)

    def begin(self, begins: Tensor, lengths: Tensor) -> None:
        """Begin requests on the device.

        Args:
            begins: [B] bool, of the first slots.
            lengths: [B] int64, prompt tokens of those that begin.
        """
        rows = slice(0, len(begins))
        self.tally.num_read[rows] = torch.where(begins, 0, self.tally.num_read[rows])
        self.prompt_lengths[rows] = torch.where(begins, lengths, self.prompt_lengths[rows])

    def write(self, requests: Mapping[int, SamplingSettings | None]) -> None:
        """Write the settings of requests that begin, by slot, after everything launched so far.

        Raises:
            ValueError: one has more biases and ends than the engine was built for.
        """
        before = list(self._given)
        for slot, own in requests.items():
            self._given[slot] = given = own or self._default
            found = given.num_fixed_tokens(self._ends)
            if found > self._num_fixed:
                raise ValueError(
                    f"a request's sampling: expected at most {self._num_fixed} tokens with a bias or that end it "
                    f"(EngineSettings.num_fixed_tokens), found {found}"
                )
        if self._given != before:
            source = self._packed(self._given)
            if self._memory.is_cuda:
                source = source.pin_memory()
            self._memory.copy_(source, non_blocking=True)

    def move(self, source: int, destination: int) -> None:
        """Let one slot hold all that another one does."""
        for tensor in (*self.tally, self.prompt_lengths):
            tensor[destination] = tensor[source]
        self.write({destination: self._given[source]})

    def _packed(self, given: Sequence[SamplingSettings]) -> Tensor:
        """[S * (20 + 9 F)] uint8: S int64 of min_tokens; S float32 each of the penalties; S F int32 of token ids; S F
        float32 of biases; S F bytes of ends."""
        numbers = torch.tensor([each.min_tokens for each in given], dtype=torch.int64)
        names = ("repetition_penalty", "frequency_penalty", "presence_penalty")
        strengths = torch.tensor([[getattr(each, name) for each in given] for name in names], dtype=torch.float32)
        size = len(given), self._num_fixed
        token_ids = torch.full(size, -1, dtype=torch.int32)
        biases, ends = torch.zeros(size), torch.zeros(size, dtype=torch.bool)
        for slot, each in enumerate(given):
            of_tokens = dict.fromkeys(sorted(self._ends), 0.0) if each.min_tokens else {}
            of_tokens |= each.biases
            ids = list(of_tokens)
            token_ids[slot, : len(ids)] = torch.tensor(ids, dtype=torch.int32)
            biases[slot, : len(ids)] = torch.tensor(list(of_tokens.values()))
            ends[slot, : len(ids)] = torch.tensor([token_id in self._ends for token_id in ids], dtype=torch.bool)
        return torch.cat([each.flatten().view(torch.uint8) for each in (numbers, strengths, token_ids, biases, ends)])
