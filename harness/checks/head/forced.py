"""How far a drafter's greedy drafts agree with texts that are known, at places of the answers that lie STRIDE apart.

The drafter reads the target's states of a text as the engine would hand them over, and proposes at each place; nothing
is generated, so that many variants of a head can be compared on the same places, pair by pair. The counts become a
record, and their metrics and intervals are those of every other record.

Shapes: B texts, K draft tokens, L tokens of the longest text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from harness.analysis.estimates import Estimates
from harness.checks.head.counted import of_counts
from harness.checks.head.texts import StatesOfTexts
from harness.config.cell import CellConfig
from harness.drafters.chain import DrafterShape
from harness.drafters.protocol import Batch, Drafter, ReadPart, TargetStep
from harness.drafters.registry import LoadedHead, build_drafter
from harness.models.target import TargetOutput
from harness.records.counts import DraftCounts
from harness.records.schema import CellRecord
from kernels.contract import Sampling, Streams
from kernels.core import core_for

STRIDE = 4


class Reading(NamedTuple):
    """What the pairs of a head are made of, where it is not what they should be."""

    late_features: int = 0
    """Places by which the target's states come late."""
    late_tokens: int = 0
    """Places by which the tokens beside them come late."""
    before_norm: bool = False
    """Whether the last states are those before the target's final norm."""


AS_IT_IS = Reading()


@dataclass(frozen=True)
class Forced:
    """Runs drafters on some texts."""

    cell: CellConfig
    record: CellRecord
    """Of a run of the cell, whose settings the records of trials keep."""
    states: StatesOfTexts
    stride: int = STRIDE
    """Tokens from one place to the next."""

    def estimates(self, loaded: LoadedHead, reading: Reading = AS_IT_IS) -> Estimates:
        """The metrics of a head's drafts on the texts."""
        counts = self.counts(loaded, reading)
        keys = [(text.prompt_id, text.sample) for text in self.states.texts]
        return of_counts(self.record, dict(zip(keys, counts, strict=True)))

    @torch.inference_mode()
    def counts(self, loaded: LoadedHead, reading: Reading) -> list[DraftCounts]:
        """Drafts and how many of their tokens agree, for each text."""
        states, depth = self.states, self.cell.drafting.num_speculative_tokens
        num_texts, target = len(states.texts), states.target
        shape = DrafterShape(num_texts, states.longest + depth + 1, depth, target.vocab_size)
        drafter = build_drafter(self.cell, target, loaded, shape)
        given = _given(states, drafter, reading)
        core = core_for(target.device)
        sampling = replace(Sampling.same_for_all(num_texts, 0.0, 0, 1.0, 0.0, target.device), truncates=False)
        seeds = torch.zeros(num_texts, dtype=torch.int64, device=target.device)
        drafted = torch.zeros(num_texts, depth, dtype=torch.int64, device=target.device)
        accepted = torch.zeros_like(drafted)
        padded = torch.nn.functional.pad(states.token_ids, (0, depth + 1))
        known = states.first + 1
        read = torch.zeros_like(known)
        for number in range(1 + int((states.lengths - known).max()) // self.stride):
            here = torch.minimum(known + number * self.stride, states.lengths)
            drafter.extend(_step(states, given, read, here, reading))
            read = here - 1
            streams = Streams(seeds, here, seeds + number)
            batch = Batch(slice(0, num_texts), num_texts, depth, padded, sampling, streams, core, int(here.max()))
            draft = drafter.propose(batch)
            places = here[:, None] + torch.arange(depth, device=target.device)
            is_drafted = (places < states.lengths[:, None]) & (
                torch.arange(depth, device=target.device) < draft.num_draft_tokens[:, None]
            )
            agrees = (draft.token_ids == padded.gather(1, places.clamp_max(padded.shape[1] - 1))) & is_drafted
            drafted += is_drafted
            accepted += agrees.long().cumprod(dim=1)
        return [_counts(*rows) for rows in zip(drafted.tolist(), accepted.tolist(), strict=True)]


def _given(states: StatesOfTexts, drafter: Drafter, reading: Reading) -> TargetOutput:
    """[B, L, H] the states that the drafter is handed."""
    output = states.output(drafter.aux_layers)
    if reading.before_norm:
        last = states.target.num_layers
        output = TargetOutput(states.output((last,)).aux[0], output.aux)
    late = reading.late_features
    return TargetOutput(_late(output.hidden, late), tuple(_late(state, late) for state in output.aux))


def _late(states: Tensor, places: int) -> Tensor:
    """The same, so many places later; the first ones stand again where nothing comes before."""
    if not places:
        return states
    at = (torch.arange(states.shape[1], device=states.device) - places).clamp(0, states.shape[1] - 1)
    return states[:, at]


def _step(states: StatesOfTexts, given: TargetOutput, read: Tensor, here: Tensor, reading: Reading) -> TargetStep:
    """What lies between two places: tokens `read` .. `here` - 2 of each text, whose next tokens are known.

    Texts that need fewer tokens than others read on; what that writes is overwritten when they get there.
    """
    number = (here - 1 - read).clamp_min(1)
    width = int(number.max())
    # one that has ended reads its last tokens again
    start = torch.minimum(read, states.lengths - 2).clamp_min(0)
    places = (start[:, None] + torch.arange(width, device=read.device)).clamp_max(states.longest - 2)
    at = places[:, :, None]
    output = TargetOutput(_taken(given.hidden, at), tuple(_taken(state, at) for state in given.aux))
    next_places = (places + 1 - reading.late_tokens).clamp(0, states.longest - 1)
    part = ReadPart(
        slice(0, len(read)),
        states.token_ids.gather(1, places),
        states.token_ids.gather(1, next_places),
        places,
        int(places.max()) + 1,
        True,
        output,
    )
    last = torch.arange(len(read), device=read.device) * width + (number - 1)
    return TargetStep(len(read), (part,), last, torch.zeros(len(read), dtype=torch.bool, device=read.device))


def _taken(states: Tensor, at: Tensor) -> Tensor:
    return states.gather(1, at.expand(-1, -1, states.shape[-1]))


def _counts(drafted: Sequence[int], accepted: Sequence[int]) -> DraftCounts:
    return DraftCounts(drafted[0], sum(drafted), sum(accepted), tuple(drafted), tuple(accepted))
