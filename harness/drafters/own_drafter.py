"""What the engine expects of a drafter of the user's own, and what is said where its drafts are something else.

Shapes: B rows that may decode, K draft tokens per round, V the target's vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.drafters.protocol import Batch
from kernels.contract import Draft, DraftSampling


@dataclass(frozen=True)
class OwnDrafter:
    """Which one it is, and what its drafts must fit.

    Tensors alone are looked at while a step is launched, never their values: a GPU would have to be waited for. Token
    ids are checked where they come to the host with what the step decided; until then `readable` keeps the target's
    embedding from reading beside its memory.
    """

    kind: str
    """PACKAGE.MODULE:NAME."""
    draft_sampling: DraftSampling
    vocab_size: int
    """V."""

    def checked(self, draft: object, batch: Batch) -> Draft:
        """What `propose` returned for a batch.

        Raises:
            ValueError: it is no Draft, not of the batch's size, a tree, or its logits are missing, or there for drafts
                that are one-hot.
        """
        wanted = f"drafter.kind: expected propose of {self.kind} to return a kernels.contract.Draft"
        if not isinstance(draft, Draft):
            raise ValueError(f"{wanted}, found a {type(draft).__name__}")
        size = (batch.num_rows, batch.num_speculative_tokens)
        for name, tensor, shape in (
            ("token_ids", draft.token_ids, size),
            ("num_draft_tokens", draft.num_draft_tokens, size[:1]),
        ):
            if tensor.shape != shape or tensor.dtype != torch.int64:
                raise ValueError(
                    f"{wanted} with {name} {list(shape)} int64 as its batch says, found {list(tensor.shape)} "
                    f"{str(tensor.dtype).removeprefix('torch.')}"
                )
        if draft.parents is not None:
            raise ValueError(f"{wanted} that is a chain, found parents {list(draft.parents.shape)}")
        sampling, logits = self.draft_sampling, draft.logits
        if sampling is DraftSampling.greedy and logits is not None:
            raise ValueError(
                f"{wanted} without logits, since drafting.sampling=greedy makes drafts one-hot, found logits "
                f"{list(logits.shape)}; return it without them, or use drafting.sampling=sampled"
            )
        if sampling is not DraftSampling.greedy and logits is None:
            raise ValueError(
                f"{wanted} with the logits that its tokens were drawn from, since drafting.sampling={sampling.value}, "
                "found none; draw by harness.drafters.draft_logits.DraftLogits, which keeps them, or use "
                "drafting.sampling=greedy"
            )
        return draft

    def readable(self, token_ids: Tensor) -> Tensor:
        """Ids, int64, with those outside the vocabulary replaced by some inside."""
        return token_ids.clamp(0, self.vocab_size - 1)

    def check_tokens(self, draft_ids: Sequence[int], where: object) -> None:
        """Raises ValueError for a draft token outside the vocabulary.

        Args:
            draft_ids: of a round, on the host.
            where: the round and its request, for the message.
        """
        if draft_ids and not 0 <= min(draft_ids) <= max(draft_ids) < self.vocab_size:
            place, token_id = next(item for item in enumerate(draft_ids) if not 0 <= item[1] < self.vocab_size)
            raise ValueError(
                f"drafter.kind: expected draft tokens of {self.kind} in 0..{self.vocab_size - 1}, the target's "
                f"vocabulary, found {token_id} as draft token {place + 1} of {where}; num_draft_tokens says where a "
                "shorter draft ends"
            )

    def check_count(self, num_draft_tokens: int, where: object) -> None:
        """Raises ValueError for a negative number of draft tokens; arguments as of `check_tokens`."""
        if num_draft_tokens < 0:
            raise ValueError(
                f"drafter.kind: expected num_draft_tokens of {self.kind} of 0 or more, found {num_draft_tokens} for "
                f"{where}"
            )
