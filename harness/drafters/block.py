"""A block drafter: one forward of a head fills a block of masked places, which give the draft rows.

`extend` writes the keys and values of the tokens that the target has read, whose states the head projects. `propose`
reads the last token, which the target has not read, and the masked places behind it, all in one forward before the
first draft token is drawn: K of them, or K - 1 of a head whose first place drafts too. They lie in the cache as the
nodes of a tree do that all see each other; the next `extend` and `propose` overwrite them. The rows of DFlash depend on
no draft token; those of DSpark and DFlash2 on the one before, and are made one after the other.

Shapes: B rows, K draft tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from harness.drafters.chain import DrafterShape, NetworkDrafter
from harness.drafters.draft_logits import AS_DRAFTED, Caching, DraftLogits
from harness.drafters.protocol import Batch, DrafterCost, TargetStep
from harness.models.cost import total
from harness.models.dflash import DFlashHead
from harness.models.tree_places import TreePlaces
from kernels.contract import Draft, DraftSampling


class BlockDrafter(NetworkDrafter):
    """Drafts with a head that fills blocks, and owns its key-value cache and the persistent draft-logit cache.

    Raises ValueError where K is more than the head was trained to draft.
    """

    def __init__(
        self, head: DFlashHead, draft_sampling: DraftSampling, shape: DrafterShape, caching: Caching = AS_DRAFTED
    ) -> None:
        most = head.config.most_drafts
        if shape.num_speculative_tokens > most:
            raise ValueError(
                f"drafting.num_speculative_tokens: expected at most {most} with a {head.name} head that was trained on "
                f"blocks of {head.config.block_size}, found {shape.num_speculative_tokens}"
            )
        self.head = head
        self.aux_layers = head.aux_layers
        self.num_parameters = head.num_parameters
        # one slot more than there are takes what rows without a request write
        self._cache = head.new_cache(shape.num_slots + 1, shape.capacity)
        device, dtype = self._cache.slot_ids.device, self._cache.dtype
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
        """Read the target's states of all tokens of a step; rejected ones' are overwritten before they count."""
        for part in step.parts:
            view = self._cache.view(part.rows, part.positions, part.length, groups=part.groups)
            self.head.read(self.head.features(part.output), part.positions, view)

    def propose(self, batch: Batch) -> Draft:
        """Draft K tokens for each row; their logits stay in the cache, as the verifier will read them."""
        num_tokens, starts = batch.num_speculative_tokens, batch.lengths - 1
        num_masks = self.head.config.num_places(num_tokens) - 1
        places = torch.arange(num_masks + 1, device=starts.device)
        last = batch.token_ids.gather(1, starts.unsqueeze(1))
        masks = torch.full((batch.num_rows, num_masks), self.head.config.mask_token_id, device=starts.device)
        tree = TreePlaces(starts, places, places.new_ones(len(places), len(places), dtype=torch.bool))
        view = self._cache.view(batch.rows, tree.absolute, batch.length + num_masks, tree)
        hidden = self.head.fill_block(torch.cat((last, masks), dim=1), tree.absolute, view)
        places = hidden[:, -num_tokens:].contiguous()
        rows, token_ids = self.head.rows(places), last.squeeze(1)
        predicted = self.head.confidence(places) if self._logits.ends_early else None
        drafted = []
        for step in range(num_tokens):
            logits = rows.row(step, token_ids, self._logits.place(batch, step))
            sure = None if predicted is None else predicted.at(step, token_ids)
            token_ids = self._logits.draw(logits, batch, step, sure)
            drafted.append(token_ids)
            if self._logits.has_ended(batch, step):
                break
        return self._logits.draft(drafted, batch)

    def state(self) -> Sequence[Tensor]:
        """Nothing beside the cache, which is read up to the last token that is known."""
        return ()

    def cost(self, num_slots: int, num_speculative_tokens: int, length: int) -> DrafterCost:
        """One pass over the block of each slot, one product with the output matrix, what the rows take beside it; then
        the keys and values of K + 1 tokens."""
        head, num_tokens = self.head.cost, num_speculative_tokens
        return DrafterCost(
            draft=total(
                head.passes(num_slots, [self.head.config.num_places(num_tokens)], length, sees_all=True),
                head.logits(1, num_tokens * num_slots),
                self.head.rows_cost(num_slots, num_tokens),
                self._logits.cost(num_slots),
            ),
            extend=self.head.context_cost(num_slots * (num_tokens + 1)),
        )
