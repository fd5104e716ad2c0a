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

    Tensors alone are looked at while a step is launched, not their values on a GPU, which would have to be waited for.
    Token ids and counts are checked where they come to the host with what the step decided; until then `readable` keeps
    the target's embedding from reading beside its memory.
    """

    kind: str
    """PACKAGE.MODULE:NAME."""
    draft_sampling: DraftSampling
    vocab_size: int
    """V."""

    def checked(self, draft: object, batch: Batch) -> Draft:
        """What `propose` returned for a batch.

        Raises:
            ValueError: it is no Draft, not of the batch's size, a tree, or its logits are missing, of another size, or
                there for drafts that are one-hot.
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
        counts = draft.num_draft_tokens
        if counts.device.type == "cpu" and len(counts) and int(counts.max()) > size[1]:
            # as the host sees it of a GPU, but there without waiting
            self.check_count(int(counts.max()), size[1], f"row {int(counts.argmax())} of its batch")
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
        if logits is not None:
            kept = draft.draft_to_target
            num_ids = self.vocab_size if kept is None else kept.shape[0]
            is_enough = logits.dim() == 3 and logits.shape[1] >= size[1] and logits.shape[2] == num_ids
            if not (is_enough and logits.is_floating_point()):
                raise ValueError(
                    f"{wanted} with logits [{size[0]}, {size[1]}, {num_ids}] of numbers with a point, one for each of "
                    f"its tokens, found {list(logits.shape)} {str(logits.dtype).removeprefix('torch.')}"
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

    def check_count(self, num_draft_tokens: int, most: int, where: object) -> None:
        """Raises ValueError for a number of draft tokens below 0 or above the places of a round.

        Args:
            num_draft_tokens: of a round, on the host.
            most: places of the round.
            where: as of `check_tokens`.
        """
        if not 0 <= num_draft_tokens <= most:
            limit = "0 or more" if num_draft_tokens < 0 else f"{most} at most"
            raise ValueError(
                f"drafter.kind: expected num_draft_tokens of {self.kind} of {limit}, found {num_draft_tokens} for "
                f"{where}"
            )
