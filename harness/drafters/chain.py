"""A chain drafter: a small head drafts K tokens one after the other from the target's last state.

Serves EAGLE, EAGLE-3 and MTP, which differ only in their head (harness.models). Pair t of a head is (token x_{t+1},
feature of x_t); its logits are for x_{t+2}. `extend` feeds the pairs whose token and target state are known and keeps
the last pair's output; `propose` draws from it, and goes on with the head's own features. What the chain wrote for its
own guesses is overwritten by the next `extend`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from harness.drafters.draft_logits import AS_DRAFTED, Caching, DraftLogits
from harness.drafters.protocol import Batch, DrafterCost, ReadPart, TargetStep
from harness.models.cost import total
from harness.models.direct_layer import rounds_alike
from harness.models.head import Head
from harness.models.slot_cache import TargetCache
from kernels.contract import Draft, DraftSampling


class DrafterShape(NamedTuple):
    """How much room a drafter needs."""

    num_slots: int
    capacity: int
    num_speculative_tokens: int
    target_vocab_size: int

    def logits_size(self, vocab_size: int) -> tuple[int, int, int]:
        """[S, K, V_draft] of the draft-logit cache."""
        return self.num_slots, self.num_speculative_tokens, vocab_size


class NetworkDrafter:
    """What a drafter with a network owns: its key-value cache and the persistent draft-logit cache."""

    _cache: TargetCache
    _logits: DraftLogits

    @property
    def cache_bytes(self) -> int:
        return self._cache.num_bytes

    @property
    def logit_cache_bytes(self) -> int:
        return self._logits.num_bytes

    @property
    def drawn_rows(self) -> Tensor | None:
        return self._logits.drawn_rows

    def clear(self, slot: int) -> None:
        """Zero a slot's keys and values, so that a NaN in them does not reach its next request."""
        self._cache.clear(slice(slot, slot + 1))

    def move(self, source: int, destination: int) -> None:
        """See harness.drafters.protocol.MovesSlots; draft logits do not outlast their round."""
        self._cache.move(source, destination)


class ChainDrafter(NetworkDrafter):
    """Drafts with a head, and owns its key-value cache and the persistent draft-logit cache with its statistics."""

    def __init__(
        self, head: Head, draft_sampling: DraftSampling, shape: DrafterShape, caching: Caching = AS_DRAFTED
    ) -> None:
        self.head = head
        self.aux_layers = head.aux_layers
        self.num_parameters = head.num_parameters
        layers = head.decoder_layers
        self._only_layer = layers[0] if len(layers) == 1 and not head.is_fused else None
        # one slot more than there are takes what rows without a request write
        self._cache = head.new_cache(shape.num_slots + 1, shape.capacity)
        device, dtype = self._cache.slot_ids.device, self._cache.dtype
        size = (shape.num_slots, head.hidden_size)
        self._hidden = torch.zeros(size, dtype=dtype, device=device)
        self._features = self._hidden if head.features_are_hidden else torch.zeros_like(self._hidden)
        self._logits = DraftLogits(
            draft_sampling,
            shape.logits_size(head.vocab_size),
            shape.target_vocab_size,
            head.draft_to_target,
            dtype,
            device,
            caching,
        )

    def extend(self, step: TargetStep) -> None:
        """Feed the known pairs of a target step; keeps the last pair's output as the start of the next chain."""
        hidden, features, index = [], [], step.last
        num_tokens = num_states = 0
        for part in step.parts:
            view = self._cache.view(part.rows, part.positions, part.length, groups=part.groups)
            read = self.head.features(part.output)
            number = step.last - num_tokens if num_tokens else step.last
            wanted = None
            if rounds_alike(self._only_layer, read, view):
                # of the other pairs only keys and values are read again
                wanted, number = _wanted(part, number), number // part.next_ids.shape[1]
            output = self.head(part.next_ids, read, part.positions, view, wanted)
            hidden.append(output.hidden.flatten(0, 1))
            features.append(output.next_features.flatten(0, 1))
            index = torch.where(number >= 0, number + num_states, index) if num_tokens else number
            num_tokens, num_states = num_tokens + part.next_ids.numel(), num_states + len(hidden[-1])
        _keep(self._hidden[: step.num_rows], _joined(hidden)[index], step.is_undecided)
        if self._features is not self._hidden:
            _keep(self._features[: step.num_rows], _joined(features)[index], step.is_undecided)

    def clear(self, slot: int) -> None:
        """Zero a slot's keys, values and states, so that a NaN in them does not reach its next request."""
        super().clear(slot)
        for tensor in self.state():
            tensor[slot] = 0

    def move(self, source: int, destination: int) -> None:
        """The same with the states."""
        super().move(source, destination)
        for tensor in self.state():
            tensor[destination] = tensor[source]

    def state(self) -> tuple[Tensor, ...]:
        return (self._hidden,) if self._features is self._hidden else (self._hidden, self._features)

    def cost(self, num_slots: int, num_speculative_tokens: int, length: int) -> DrafterCost:
        """K - 1 passes over a pair of each slot, K products with the output matrix; then one pass over K + 1 pairs."""
        head, num_tokens = self.head.cost, num_speculative_tokens
        return DrafterCost(
            draft=total(
                head.passes(num_slots, [1] * (num_tokens - 1), length),
                head.logits(num_tokens, num_slots),
                self._logits.cost(num_slots),
            ),
            extend=total(head.passes(num_slots, [num_tokens + 1], length), head.join(num_slots * (num_tokens + 1))),
        )

    def propose(self, batch: Batch) -> Draft:
        """Draft K tokens for each row; their logits stay in the cache, as the verifier will read them."""
        hidden, features = self._hidden[: batch.num_rows], self._features[: batch.num_rows]
        drafted: list[Tensor] = []
        for step in range(batch.num_speculative_tokens):
            if step:
                # pair t reads token x_{t+1}: the first draft token, at position n, belongs to pair n - 1
                pair = (batch.lengths + (step - 2)).unsqueeze(1)
                view = self._cache.view(batch.rows, pair, batch.length + step - 1)
                output = self.head(drafted[-1].unsqueeze(1), features.unsqueeze(1), pair, view)
                hidden, features = output.hidden[:, 0], output.next_features[:, 0]
            logits = self.head.logits(hidden, self._logits.place(batch, step))
            drafted.append(self._logits.draw(logits, batch, step))
            if self._logits.has_ended(batch, step):
                break
        return self._logits.draft(drafted, batch)


def _joined(parts: list[Tensor]) -> Tensor:
    """The states of all parts, which a single one need not be copied for."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _wanted(
    part: ReadPart,
    # [B] int64
    number: Tensor,
) -> Tensor:
    """[R] int64, number of one pair of each row: the slot's `number` in this part; any pair of a row without it."""
    num_rows, width = part.next_ids.shape
    slots = part.rows if isinstance(part.rows, slice) else part.rows.clamp_max(len(number) - 1)
    return (number % width)[slots] + torch.arange(0, num_rows * width, width, device=number.device)


def _keep(
    # [B, H]
    kept: Tensor,
    # [B, H]
    found: Tensor,
    # [B] bool
    is_undecided: Tensor,
) -> None:
    """Replace what is kept of the slots, but for those of which nothing was decided."""
    torch.where(is_undecided.unsqueeze(1), kept, found.to(kept.dtype), out=kept)
