"""A drafter of independent heads: every draft row of a round follows from the target's last state alone.

It has no cache and reads no draft token: `extend` keeps the state of the last token whose next one is known, `propose`
gives the rows of all positions. In a tree all nodes of a depth have one row, that of the head of their children.

Shapes: S slots, B rows, K draft tokens, H hidden size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.drafters.chain import DrafterShape
from harness.drafters.draft_logits import AS_DRAFTED, Caching, DraftLogits
from harness.drafters.protocol import Batch, DrafterCost, TargetStep
from harness.drafters.tree_growth import TreeShape
from harness.models.cost import total
from harness.models.medusa import MedusaHead
from kernels.contract import Draft, DraftSampling


class MedusaDrafter:
    """Drafts chains with the heads of a Medusa model, and owns the persistent draft-logit cache.

    Raises ValueError where more positions are drafted than there are heads.
    """

    aux_layers: tuple[int, ...] = ()
    cache_bytes = 0

    def __init__(
        self,
        head: MedusaHead,
        draft_sampling: DraftSampling,
        shape: DrafterShape,
        caching: Caching = AS_DRAFTED,
        depth: int | None = None,
    ) -> None:
        """depth: positions that are drafted, where they are not as many as draft tokens."""
        num_heads, deepest = head.config.num_heads, shape.num_speculative_tokens if depth is None else depth
        if deepest > num_heads:
            key = "drafting.num_speculative_tokens" if depth is None else "drafting.tree"
            raise ValueError(
                f"{key}: expected at most {num_heads} positions with a Medusa model of {num_heads} heads, found "
                f"{deepest}"
            )
        self.head, self.num_parameters = head, head.num_parameters
        device, dtype = head.target.device, head.target.dtype
        self._hidden = torch.zeros(shape.num_slots, head.hidden_size, dtype=dtype, device=device)
        size = shape.logits_size(head.vocab_size)
        self._logits = DraftLogits(
            draft_sampling, size, shape.target_vocab_size, head.draft_to_target, dtype, device, caching
        )

    @property
    def logit_cache_bytes(self) -> int:
        return self._logits.num_bytes

    @property
    def drawn_rows(self) -> Tensor | None:
        return self._logits.drawn_rows

    def extend(self, step: TargetStep) -> None:
        """Keep the target's state of each slot's last token whose next one is known."""
        states = torch.cat([part.output.hidden.flatten(0, 1) for part in step.parts])
        kept = self._hidden[: step.num_rows]
        torch.where(step.is_undecided.unsqueeze(1), kept, states[step.last], out=kept)

    def clear(self, slot: int) -> None:
        self._hidden[slot] = 0

    def move(self, source: int, destination: int) -> None:
        """See harness.drafters.protocol.MovesSlots."""
        self._hidden[destination] = self._hidden[source]

    def state(self) -> tuple[Tensor, ...]:
        return (self._hidden,)

    def cost(self, num_slots: int, num_speculative_tokens: int, length: int) -> DrafterCost:
        """Blocks and output matrices of K heads, each once."""
        return DrafterCost(total(self.head.round_cost(num_slots, num_speculative_tokens), self._logits.cost(num_slots)))

    def propose(self, batch: Batch) -> Draft:
        """Draft K tokens for each row; their logits stay in the cache, as the verifier will read them."""
        rows = self.head.rows(self._hidden[: batch.num_rows], batch.num_speculative_tokens)
        drafted = []
        for step in range(batch.num_speculative_tokens):
            drafted.append(self._logits.draw(rows[:, step], batch, step))
            if self._logits.has_ended(batch, step):
                break
        return self._logits.draft(drafted, batch)


class MedusaTreeDrafter(MedusaDrafter):
    """The same with trees, whose shape is given, or chosen by the products of the heads' probabilities."""

    def __init__(
        self,
        head: MedusaHead,
        draft_sampling: DraftSampling,
        shape: DrafterShape,
        tree: TreeShape,
        caching: Caching = AS_DRAFTED,
    ) -> None:
        super().__init__(head, draft_sampling, shape, caching, tree.depth)
        self.tree = tree

    def propose(self, batch: Batch) -> Draft:
        """Draft the tree of each row; the logits that siblings are drawn from stay in the cache."""
        rows = self.head.rows(self._hidden[: batch.num_rows], self.tree.depth)
        growth = self.tree.grow(batch, self._logits)
        for depth in range(self.tree.depth):
            num_nodes = growth.level(depth).token_ids.shape[1] if depth else 1
            growth.add(rows[:, depth : depth + 1].expand(-1, num_nodes, -1).contiguous())
        return growth.draft()

    def keep_path(self, rows: slice | Tensor, starts: Tensor, path: Tensor) -> None:
        """Nothing is kept of drafts."""

    def cost(self, num_slots: int, num_speculative_tokens: int, length: int) -> DrafterCost:
        return super().cost(num_slots, self.tree.depth, length)
