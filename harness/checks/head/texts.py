"""The texts of a protocol as token ids, and the target's states in them: what a drafter needs to draft along a text.

Shapes: B texts, L tokens of the longest, H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from harness.backends.local.requests import CellRequests
from harness.config.cell import CellConfig
from harness.models.target import TargetModel, TargetOutput
from harness.records.schema import CellRecord
from harness.workload.conversations import Conversation

TEXTS_A_FORWARD = 8
FINAL = -1
"""Stands for the states after the target's final norm, among its layers."""


class Text(NamedTuple):
    """A prompt and its answer."""

    prompt_id: str
    category: str
    sample: int
    num_prompt_tokens: int
    token_ids: tuple[int, ...]


def texts_of(
    cell: CellConfig, record: CellRecord, conversations: Sequence[Conversation], target: TargetModel, sample: int
) -> list[Text]:
    """The texts that a cell has written; `sample` tells them from those of others."""
    requests = CellRequests(cell, target)
    prompts = {item.prompt.prompt_id: requests.first(item) for item in conversations}
    found = []
    for item in record.requests:
        prompt = prompts[item.prompt_id]
        assert prompt is not None, "it was answered"
        ids = (*prompt.token_ids, *item.output_token_ids)
        found.append(Text(item.prompt_id, item.category, sample, len(prompt.token_ids), ids))
    return found


@dataclass
class StatesOfTexts:
    """Some texts in one batch, and the target's states in them, computed once for each layer."""

    target: TargetModel
    texts: Sequence[Text]
    _states: dict[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        device = self.target.device
        self.lengths = torch.tensor([len(text.token_ids) for text in self.texts], device=device)
        self.longest = int(self.lengths.max())
        rows = [[*text.token_ids, *[0] * (self.longest - len(text.token_ids))] for text in self.texts]
        self.token_ids = torch.tensor(rows, device=device)
        """[B, L] int64, zeros behind the end."""
        self.first = torch.tensor([text.num_prompt_tokens for text in self.texts], device=device)
        """[B] int64, place of the first token of the answer."""

    def look_at(self, layers: Iterable[int]) -> None:
        """Compute the states that enter these layers, those that are missing in one pass over the texts."""
        missing = tuple(sorted({FINAL, *layers} - set(self._states)))
        if not missing:
            return
        asked = tuple(layer for layer in missing if layer != FINAL)
        parts = [
            self._forward(start, min(start + TEXTS_A_FORWARD, len(self.texts)), asked)
            for start in range(0, len(self.texts), TEXTS_A_FORWARD)
        ]
        self._states[FINAL] = torch.cat([part.hidden for part in parts])
        for place, layer in enumerate(asked):
            self._states[layer] = torch.cat([part.aux[place] for part in parts])

    def output(self, layers: Sequence[int]) -> TargetOutput:
        """[B, L, H] the states after the final norm, and those that enter each layer, as a forward would give them."""
        self.look_at(layers)
        return TargetOutput(self._states[FINAL], tuple(self._states[layer] for layer in layers))

    @torch.inference_mode()
    def _forward(self, start: int, stop: int, layers: tuple[int, ...]) -> TargetOutput:
        cache = self.target.new_cache(stop - start, self.longest)
        positions = torch.arange(self.longest, device=self.target.device).repeat(stop - start, 1)
        view = cache.view(slice(0, stop - start), positions, self.longest)
        return self.target.forward(self.token_ids[start:stop], positions, view, layers)
