"""An independent draft model: a small language model that reads tokens only, in its own ids or in the target's.

Before it drafts it reads the last two tokens of each row: the last one is new to it, and so is the one before it when
all drafts of the round before were accepted. Everything earlier it has read while it drafted, or with the prompt.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.drafters.chain import DrafterShape, NetworkDrafter
from harness.drafters.draft_logits import AS_DRAFTED, Caching, DraftLogits
from harness.drafters.protocol import Batch, DrafterCost, TargetStep
from harness.drafters.shared_rows import SharedRows
from harness.drafters.tree_growth import NodesToRead
from harness.models.cost import total
from harness.models.decoder_layer import View
from harness.models.target import TargetModel
from kernels.contract import NO_TOKEN, Draft, DraftSampling


class DraftModelDrafter(NetworkDrafter):
    """Drafts with a language model, and owns its key-value cache and the persistent draft-logit cache."""

    aux_layers: tuple[int, ...] = ()

    def __init__(
        self, model: TargetModel, draft_sampling: DraftSampling, shape: DrafterShape, caching: Caching = AS_DRAFTED
    ) -> None:
        self.model = model
        self.num_parameters = model.num_parameters
        # one slot more than there are takes what rows without a request write
        self._cache = model.new_cache(shape.num_slots + 1, shape.capacity, shape.num_speculative_tokens + 1)
        tokens = model.shared_tokens
        self.shared = None if tokens is None else SharedRows(tokens, model.device)
        """For a model of another tokenizer."""
        draft_ids = None if self.shared is None else self.shared.target_ids
        size = shape.logits_size(model.vocab_size if draft_ids is None else len(draft_ids))
        self._logits = DraftLogits(
            draft_sampling, size, shape.target_vocab_size, draft_ids, model.dtype, model.device, caching
        )

    def extend(self, step: TargetStep) -> None:
        """Read prompts; what a round added is read with the next drafts."""
        for part in step.parts:
            if part.has_prompts:
                view = self._cache.view(part.rows, part.positions, part.length, groups=part.groups)
                self._forward(part.token_ids, part.positions, view)

    def state(self) -> tuple[Tensor, ...]:
        return ()

    def cost(self, num_slots: int, num_speculative_tokens: int, length: int) -> DrafterCost:
        """K passes, the first over the last two tokens of each slot, whose keys are not there before."""
        model, num_tokens = self.model.cost, num_speculative_tokens
        passes = model.passes(num_slots, [2] + [1] * (num_tokens - 1), length - 1)
        return DrafterCost(total(passes, model.logits(num_tokens, num_slots), self._logits.cost(num_slots)))

    def propose(self, batch: Batch) -> Draft:
        """Draft K tokens for each row; their logits stay in the cache, as the verifier will read them."""
        positions, token_ids, length = self._last_tokens(batch)
        drafted: list[Tensor] = []
        for step in range(batch.num_speculative_tokens):
            view = self._cache.view(batch.rows, positions, length)
            hidden = self._forward(token_ids, positions, view)[:, -1]
            logits = self._draft_rows(hidden, batch, step)
            drafted.append(self._logits.draw(logits, batch, step))
            if self._logits.has_ended(batch, step):
                break
            positions, token_ids, length = positions[:, -1:] + 1, drafted[-1].unsqueeze(1), length + 1
        return self._logits.draft(drafted, batch)

    def read(self, batch: Batch) -> None:
        """Read the last two tokens of each row; see harness.drafters.protocol.ReadsWhileDrafting."""
        positions, token_ids, length = self._last_tokens(batch)
        self._forward(token_ids, positions, self._cache.view(batch.rows, positions, length))

    def _forward(self, token_ids: Tensor, positions: Tensor, view: View) -> Tensor:
        """[B, T, H] states after tokens of the target's ids."""
        read = token_ids if self.shared is None else self.shared.read(token_ids)
        return self.model.forward(read, positions, view).hidden

    def _draft_rows(
        self, hidden: Tensor, batch: Batch, step: int | None = None, level: NodesToRead | None = None
    ) -> Tensor:
        """[B, ..., V_draft] logits of the tokens that are drafted.

        Args:
            hidden: [B, H] in a chain, [B, P, H] in a tree.
            batch: the rows.
            step: of a chain, at whose place they are written where they can be.
            level: of a tree, the nodes that they follow; None for the context.
        """
        if self.shared is not None:
            counts = batch.lengths > 1
            if hidden.ndim == 3:
                counts = counts[:, None] if level is None else counts[:, None] & (level.drafted != NO_TOKEN)
            return self.shared.restricted(self.model.logits(hidden), counts)
        return self.model.logits(hidden, None if step is None else self._logits.place(batch, step))

    def _last_tokens(self, batch: Batch) -> tuple[Tensor, Tensor, int]:
        """([B, 2] positions, [B, 2] token ids, highest position + 1) of what is read before the first draft."""
        # a row that decodes has a prompt and a token after it; one that idles stays at the start of its slot
        positions = (batch.lengths.unsqueeze(1) - 2).clamp_min(0) + torch.arange(2, device=batch.lengths.device)
        return positions, batch.token_ids.gather(1, positions), max(batch.length, 2)
