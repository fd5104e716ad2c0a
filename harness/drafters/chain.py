"""A chain drafter: a small network drafts K tokens one after the other from the target's last state.

Serves EAGLE, EAGLE-3, MTP and an independent draft model, which differ only in their head (harness.models and
harness.drafters.draft_model). Pair t of a head is (token x_{t+1}, feature of x_t); its logits are for x_{t+2}. `extend`
feeds the pairs whose token and target state are known and keeps the last pair's output; `propose` draws from it, and
goes on with the head's own features. What the chain wrote for its own guesses is overwritten by the next `extend`.
An independent draft model reads token x_{t+1} at position t + 1 instead, and the first token x_0 before all pairs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from harness.drafters.protocol import ProposalRequest, TargetStep
from harness.models.decoder_layer import View
from harness.models.head import HeadOutput
from harness.models.slot_cache import SlotCache
from harness.models.target import TargetOutput
from kernels.contract import Draft, DraftSampling, RowStats, Sampling, Streams
from kernels.core import core_for
from kernels.streams import Purpose


class Head(Protocol):
    """A network that drafts; see the classes in harness.models and harness.drafters.draft_model."""

    @property
    def aux_layers(self) -> tuple[int, ...]: ...

    @property
    def draft_to_target(self) -> Tensor | None: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def num_parameters(self) -> int: ...

    def features(self, output: TargetOutput) -> Tensor: ...

    def __call__(self, token_ids: Tensor, features: Tensor, positions: Tensor, view: View | None, /) -> HeadOutput: ...

    def logits(self, hidden: Tensor, /) -> Tensor: ...

    def new_cache(self, num_slots: int, capacity: int) -> SlotCache: ...


class ChainShape(NamedTuple):
    """How much room a chain drafter needs."""

    num_slots: int
    capacity: int
    num_speculative_tokens: int
    target_vocab_size: int


class ChainDrafter:
    """Drafts with a head, and owns its key-value cache and the persistent draft-logit cache with its statistics."""

    def __init__(
        self, head: Head, draft_sampling: DraftSampling, shape: ChainShape, reads_tokens_only: bool = False
    ) -> None:
        """`reads_tokens_only`: the head is a language model of its own and wants the sequence's first token too."""
        self.head = head
        self._offset = int(reads_tokens_only)
        self.draft_sampling = draft_sampling
        self.aux_layers = head.aux_layers
        self.num_parameters = head.num_parameters
        self._target_vocab_size = shape.target_vocab_size
        self._cache = head.new_cache(shape.num_slots, shape.capacity)
        device, dtype = self._cache.slot_ids.device, self._cache.dtype
        self._hidden: Tensor | None = None
        self._features: Tensor | None = None
        self._core = core_for(device)
        self._num_slots = shape.num_slots
        places = (shape.num_slots, shape.num_speculative_tokens)
        # [S, K, V_draft]
        size = (*places, head.vocab_size) if draft_sampling is not DraftSampling.greedy else (0, 0, 0)
        self._logits = torch.zeros(size, dtype=dtype, device=device)
        # a coupled draw leaves no statistics
        self._stats = _new_stats(places if draft_sampling is DraftSampling.sampled else (0, 0), device)

    @property
    def logit_cache_bytes(self) -> int:
        stats = self._stats
        return sum(field.nbytes for field in (self._logits, stats.maximum, stats.normalizer, stats.threshold))

    def extend(self, step: TargetStep) -> None:
        """Feed the known pairs of a target step; keeps the last pair's output as the start of the next chain."""
        token_ids, positions, last_index = step.next_ids, step.positions + self._offset, step.last_index
        if self._offset and step.is_prefill:
            token_ids = torch.cat([step.token_ids[:, :1], token_ids], dim=1)
            positions = torch.cat([step.positions[:, :1], positions], dim=1)
            last_index = last_index + 1
        view = self._cache.view(step.rows, positions, step.length + self._offset)
        output = self.head(token_ids, self.head.features(step.output), positions, view)
        rows = torch.arange(last_index.numel(), device=last_index.device)
        self._keep(step.rows, output.hidden[rows, last_index], output.next_features[rows, last_index])

    def _keep(self, rows: slice | Tensor, hidden: Tensor, features: Tensor) -> None:
        if self._hidden is None or self._features is None:
            self._hidden = hidden.new_zeros(self._num_slots, hidden.shape[-1])
            self._features = features.new_zeros(self._num_slots, features.shape[-1])
        self._hidden[rows] = hidden
        self._features[rows] = features

    def clear(self, slot: int) -> None:
        """Zero a slot's keys, values and states, so that a NaN in them does not reach its next request."""
        self._cache.clear(slice(slot, slot + 1))
        for states in (self._hidden, self._features):
            if states is not None:
                states[slot] = 0

    def propose(self, request: ProposalRequest) -> Draft:
        """Draft K tokens for rows 0..B - 1; the drawn-from logits stay in the cache, as the verifier will read them."""
        assert self._hidden is not None and self._features is not None, "extend comes before propose"
        rows, num_tokens = slice(0, request.num_rows), request.num_speculative_tokens
        hidden, features = self._hidden[rows], self._features[rows]
        drafted = []
        for step in range(num_tokens):
            logits = self.head.logits(hidden)
            token_ids = self._draw(logits, request, step)
            drafted.append(token_ids)
            if step + 1 < num_tokens:
                # pair t reads token x_{t+1}: the first draft token, at position n, belongs to pair n - 1
                pair = (request.positions + (step - 1 + self._offset)).unsqueeze(1)
                view = self._cache.view(rows, pair, request.length + step + self._offset)
                output = self.head(token_ids.unsqueeze(1), features.unsqueeze(1), pair, view)
                hidden, features = output.hidden[:, 0], output.next_features[:, 0]
        token_ids = torch.stack(drafted, dim=1)
        counts = torch.full((request.num_rows,), num_tokens, dtype=torch.int64, device=token_ids.device)
        if self.draft_sampling is DraftSampling.greedy:
            return Draft(token_ids, counts)
        stats = _part(self._stats, rows) if self.draft_sampling is DraftSampling.sampled else None
        return Draft(token_ids, counts, self._logits[rows], None, self.head.draft_to_target, stats)

    def _draw(self, logits: Tensor, request: ProposalRequest, step: int) -> Tensor:
        """One draft token per row, drawn from the very values that are cached."""
        draft_to_target = self.head.draft_to_target
        streams = Streams(request.seeds, request.positions + step, request.rounds)
        if self.draft_sampling is DraftSampling.greedy:
            greedy = _greedy(request.sampling)
            return self._core.draw(logits, greedy, streams, Purpose.draft, draft_to_target).token_ids
        places = (slice(0, request.num_rows), step)
        self._logits[places] = logits
        stored = self._logits[places]
        if self.draft_sampling is DraftSampling.coupled:
            vocab_size = self._target_vocab_size
            return self._core.coupled_draw(stored, request.sampling, streams, vocab_size, draft_to_target).token_ids
        stats = _part(self._stats, places)
        return self._core.draw(stored, request.sampling, streams, Purpose.draft, draft_to_target, stats).token_ids


def _greedy(sampling: Sampling) -> Sampling:
    """The same requests at temperature 0, where there is nothing to cut."""
    return replace(sampling, temperature=torch.zeros_like(sampling.temperature), truncates=False)


def _new_stats(size: tuple[int, int], device: torch.device) -> RowStats:
    """Statistics of `size` rows, without a meaning until they are drawn from."""
    return RowStats(
        maximum=torch.zeros(size, dtype=torch.float32, device=device),
        normalizer=torch.zeros(size, dtype=torch.float64, device=device),
        threshold=torch.zeros(size, dtype=torch.float32, device=device),
    )


def _part(stats: RowStats, places: slice | tuple[slice, int]) -> RowStats:
    """Views of the statistics at some places of the cache."""
    return RowStats(stats.maximum[places], stats.normalizer[places], stats.threshold[places])
