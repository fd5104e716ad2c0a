"""Verification by the sampling core, behind the parameters of SGLang's `chain_speculative_sampling_triton`.

SGLang hands over probabilities, so the core gets their logarithms at temperature 1. It draws its coins anew in every
round, from the request's seed or at random, and drafts from another stream: the coins' bits are the seed of the round.

Shapes: R requests, K draft tokens, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernels.contract import Draft, Sampling, Streams, Verification, VerificationMethod
from kernels.core import Core, core_for

OURS = (VerificationMethod.strict, VerificationMethod.probabilistic, VerificationMethod.block)
COIN_BITS = 24


def seeds_of(coins: Tensor, final_coins: Tensor) -> Tensor:
    """[R, >= 2] and [R] float32 in [0, 1) -> [R] int64: all bits of the final coin and the first, 16 of the second."""
    final, first, second = (
        (coin.double() * 2**COIN_BITS).long() for coin in (final_coins, *coins[:, :2].unbind(dim=1))
    )
    return final | (first << COIN_BITS) | ((second >> 8) << 2 * COIN_BITS)


class ChainVerification:
    """Stands in for SGLang's function."""

    def __init__(self, method: VerificationMethod, core: Core | None = None) -> None:
        """
        Args:
            method: one of OURS.
            core: what verifies; None is that of the tensors' device.
        """
        self.verification, self.core = Verification(method), core

    def verify(
        self,
        predicts: Tensor,
        accept_index: Tensor,
        accept_token_num: Tensor,
        candidates: Tensor,
        retrive_index: Tensor,
        retrive_next_token: Any,
        retrive_next_sibling: Any,
        uniform_samples: Tensor,
        uniform_samples_for_final_sampling: Tensor,
        target_probs: Tensor,
        draft_probs: Tensor,
        threshold_single: float,
        threshold_acc: float,
        deterministic: bool,
        *,
        block_verification: bool = False,
    ) -> None:
        """Verify a round; writes where SGLang's function writes.

        Args:
            predicts: [all places] int32; the token after place retrive_index[r, i] for the i-th emitted token.
            accept_index: [R, >= K + 1] int32; the places up to the last accepted draft.
            accept_token_num: [R] int32, accepted draft tokens.
            candidates: [R, K + 1], the last token and the drafts.
            retrive_index: [R, K + 1], their places.
            uniform_samples: [R, >= 2]; with uniform_samples_for_final_sampling [R] the coins.
            target_probs: [R, K + 1, V].
            draft_probs: [R, >= K, V].
        """
        num_requests, width = candidates.shape[0], candidates.shape[1] - 1
        device = target_probs.device
        if self.core is None:
            self.core = core_for(device)
        off = torch.zeros(num_requests, device=device)
        zeros = torch.zeros(num_requests, dtype=torch.long, device=device)
        found = self.core.verify(
            target_probs.reshape(-1, target_probs.shape[-1]).float().log(),
            Draft(
                candidates[:, 1:].long().contiguous(),
                torch.full_like(zeros, width),
                draft_probs.float().log(),
            ),
            Sampling(off + 1, zeros, off + 1, off, truncates=False),
            self.verification,
            Streams(seeds_of(uniform_samples, uniform_samples_for_final_sampling), zeros, zeros),
        )
        emitted = torch.arange(width + 1, device=device) <= found.num_accepted[:, None]
        places = retrive_index[:, : width + 1].long()
        predicts[places[emitted]] = found.token_ids[emitted].to(predicts.dtype)
        kept = accept_index[:, : width + 1]
        kept.copy_(torch.where(emitted, places.to(kept.dtype), kept))
        accept_token_num.copy_(found.num_accepted)
