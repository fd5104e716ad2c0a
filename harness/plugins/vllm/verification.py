"""Verification by the sampling core, behind the parameters of vLLM's `rejection_sample`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from harness.plugins.vllm.handover import take_over
from kernels.contract import Draft, Sampling, Verification, VerificationMethod
from kernels.core import Core, core_for

Method = VerificationMethod
OURS = (Method.strict, Method.probabilistic, Method.block, Method.synthetic)
"""The methods that a running engine may be switched to."""


class CoreVerification:
    """Stands in for `rejection_sample` of one version of vLLM."""

    def __init__(
        self,
        method: Method,
        device: torch.device,
        synthetic_rates: tuple[float, ...] = (),
        core: Core | None = None,
        caches_raw_logits: bool = False,
    ) -> None:
        """
        Args:
            method: one of OURS.
            device: of the worker.
            synthetic_rates: unconditional acceptance rates, of `synthetic` alone.
            core: what verifies; None is the device's.
            caches_raw_logits: the draft cache of this version holds the head's logits, not over the temperature.
        """
        self.verification = Verification(method, **({"rates": synthetic_rates} if synthetic_rates else {}))
        self.core = core or core_for(device)
        self.caches_raw_logits = caches_raw_logits
        self.is_raw = False
        """The target rows of the next call are the model's own, before temperature; so are no others."""
        self.on_round: Callable[[Tensor, Draft, Sampling], None] | None = None
        """Called after every round with its target rows, drafts and sampling."""

    def __call__(
        self,
        target_logits: Tensor,
        draft_logits: Tensor | None,
        draft_sampled: Tensor,
        cu_num_logits: Tensor,
        pos: Tensor,
        idx_mapping: Tensor,
        expanded_idx_mapping: Tensor,
        expanded_local_pos: Tensor,
        temperature: Tensor,
        seed: Tensor,
        num_speculative_steps: int,
        synthetic_conditional_rates: Tensor | None = None,
        use_fp64: bool = False,
        use_block_verification: bool = False,
        **more: Any,
    ) -> tuple[Tensor, Tensor]:
        """Verify a round; the method is this object's, whatever vLLM is configured to run.

        Args:
            target_logits: [N, V]; processed rows, in float32, are over the temperature, which is then 0 or 1 here.
            draft_logits: [S, K, V], drawn from at the request's temperature; None where drafts are argmaxes.
            draft_sampled: [N], -1 is a draft token that must be rejected; this and the rest as in `take_over`.

        Returns:
            ([R, K + 1] int64 emitted tokens, then -1; [R] int32 how many).
        """
        given = take_over(draft_sampled, cu_num_logits, pos, idx_mapping, temperature, seed, num_speculative_steps)
        cached = None if draft_logits is None else draft_logits[..., : target_logits.shape[1]]
        draft = Draft(
            given.token_ids,
            given.num_draft_tokens,
            cached,
            None if cached is None else given.slots,
            sampling=None if cached is None else self._draft_sampling(given.temperature),
        )
        sampling = self._sampling(given.temperature)
        found = self.core.verify(target_logits, draft, sampling, self.verification, given.streams)
        if self.on_round is not None:
            self.on_round(target_logits, draft, sampling)
        return found.token_ids, (found.num_accepted + 1).int()

    def _sampling(self, temperature: Tensor) -> Sampling:
        """Nothing is cut here any more; a greedy request stays one."""
        return _uncut(temperature if self.is_raw else (temperature > 0).float())

    def _draft_sampling(self, temperature: Tensor) -> Sampling | None:
        """None where the draft rows are over the temperature if and only if the target rows are."""
        if self.is_raw or not self.caches_raw_logits:
            return None
        return _uncut(temperature)


def _uncut(temperature: Tensor) -> Sampling:
    off = torch.zeros_like(temperature)
    return Sampling(temperature, off.long(), off + 1, off, truncates=False)
