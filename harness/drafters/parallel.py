"""A parallel drafter: one forward of its head gives the draft rows of all positions, so that none sees a draft token.

`extend` is that of a chain: it feeds the known pairs, and keeps the last pair's output, of which the first draft token
is drawn. The other K - 1 come from masked pairs behind it (harness.models.peagle), all in one forward before the first
of them is drawn. What these wrote to the cache is overwritten by the next `extend`.
"""

from __future__ import annotations

import torch

from harness.drafters.chain import ChainDrafter, DrafterShape
from harness.drafters.draft_logits import AS_DRAFTED, Caching
from harness.drafters.protocol import Batch, DrafterCost
from harness.models.cost import total
from harness.models.peagle import PEagleHead
from kernels.contract import Draft, DraftSampling


class ParallelDrafter(ChainDrafter):
    """Drafts with a P-EAGLE head; owns the same caches as a chain drafter."""

    head: PEagleHead

    def __init__(
        self, head: PEagleHead, draft_sampling: DraftSampling, shape: DrafterShape, caching: Caching = AS_DRAFTED
    ) -> None:
        super().__init__(head, draft_sampling, shape, caching)
        with torch.no_grad():
            self._mask_features = head.mask_features()

    def cost(self, num_slots: int, num_speculative_tokens: int, length: int) -> DrafterCost:
        """One pass over the K - 1 masked pairs of each slot, one product with the output matrix; then one pass over
        K + 1 pairs."""
        head, num_tokens = self.head.cost, num_speculative_tokens
        draft = total(
            head.passes(num_slots, [num_tokens - 1] if num_tokens > 1 else [], length),
            head.logits(1, num_tokens * num_slots),
            self._logits.cost(num_slots),
        )
        return super().cost(num_slots, num_tokens, length)._replace(draft=draft)

    def propose(self, batch: Batch) -> Draft:
        """Draft K tokens for each row; their logits stay in the cache, as the verifier will read them."""
        hidden, num_masked = self._hidden[: batch.num_rows].unsqueeze(1), batch.num_speculative_tokens - 1
        if num_masked:
            # the last known pair has index n - 2, and the first draft token position n
            pairs = batch.lengths.unsqueeze(1) - 1 + torch.arange(num_masked, device=batch.lengths.device)
            view = self._cache.view(batch.rows, pairs, batch.length - 1 + num_masked)
            masks = torch.full_like(pairs, self.head.config.mask_token_id)
            features = self._mask_features.repeat(*pairs.shape, 1)
            hidden = torch.cat((hidden, self.head(masks, features, pairs, view).hidden), dim=1)
        logits = self.head.logits(hidden)
        drafted = []
        for step in range(batch.num_speculative_tokens):
            drafted.append(self._logits.draw(logits[:, step], batch, step))
            if self._logits.has_ended(batch, step):
                break
        return self._logits.draft(drafted, batch)
