"""Puts a verification in the place of vLLM's own in a running worker, and takes it out again.

Three things change places, each looked up by vLLM anew in every step: the function `rejection_sample` of the module
of its rejection sampler; the sampler whose `apply_sampling_params` prepares the target rows; and the drafter's
`propose`, which gets the seeds of its round. CUDA graphs hold none of the three.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.plugins.vllm.handover import fresh_seeds
from harness.plugins.vllm.signatures import SAMPLER, RefusedVersion, Version
from harness.plugins.vllm.verification import CoreVerification


def changed_rows(sampler: Any, slots: np.ndarray) -> tuple[np.ndarray, ...]:
    """[n] bool each, whether penalties, biases or bad words change the rows of some requests; vLLM applies minimum
    lengths and allowed tokens as biases."""
    return (
        sampler.penalties_state.use_penalty[slots],
        sampler.logit_bias_state.use_logit_bias[slots],
        sampler.bad_words_state.num_bad_words.np[slots] != 0,
    )


class RawRows:
    """vLLM's sampler, except that rows which nothing but temperatures of 0 and 1 would change stay as they are.

    vLLM copies every row to float32 first. Where the copy would equal the row, the core reads the row.
    """

    def __init__(self, sampler: Any, verification: CoreVerification) -> None:
        self._sampler, self._verification = sampler, verification

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)

    def apply_sampling_params(self, logits: Tensor, *arguments: Any, **named: Any) -> Tensor:
        slots = next(each for each in arguments if isinstance(each, np.ndarray))
        self._verification.is_raw = self._is_plain(slots)
        if self._verification.is_raw:
            return logits
        return self._sampler.apply_sampling_params(logits, *arguments, **named)

    def _is_plain(self, slots: np.ndarray) -> bool:
        sampler, states = self._sampler, self._sampler.sampling_states
        temperature = states.temperature.np[slots]
        changes = (
            (temperature != 0) & (temperature != 1),
            states.top_k.np[slots] != states.vocab_size,
            states.top_p.np[slots] != 1,
            states.min_p.np[slots] != 0,
            *changed_rows(sampler, slots),
        )
        wants_processed = sampler.logprobs_mode.startswith("processed") and (states.num_logprobs[slots] >= 0).any()
        return not wants_processed and not any(change.any() for change in changes)


class FreshDrafts:
    """A drafter's `propose` with the seeds of the round, of which it copies all that it needs."""

    def __init__(self, propose: Callable[..., Tensor]) -> None:
        self.propose = propose
        self.seeds: Tensor | None = None

    def __call__(
        self,
        input_batch: Any,
        attn_metadata: Any,
        slot_mappings: Any,
        last_hidden_states: Tensor,
        aux_hidden_states: Any,
        num_sampled: Tensor,
        num_rejected: Tensor,
        last_sampled: Tensor,
        next_prefill_tokens: Tensor,
        temperature: Tensor,
        seeds: Tensor,
        *arguments: Any,
        **named: Any,
    ) -> Tensor:
        if self.seeds is None or self.seeds.shape != seeds.shape:
            self.seeds = torch.zeros_like(seeds, device=num_rejected.device)
        count = len(num_rejected)
        fresh_seeds(seeds, input_batch.idx_mapping[:count], input_batch.seq_lens[:count], num_rejected, self.seeds)
        return self.propose(
            input_batch, attn_metadata, slot_mappings, last_hidden_states, aux_hidden_states, num_sampled, num_rejected,
            last_sampled, next_prefill_tokens, temperature, self.seeds, *arguments, **named,
        )  # fmt: skip


class Swap:
    """What a worker had, and what it has instead."""

    def __init__(self, model_runner: Any, version: Version) -> None:
        """
        Raises:
            RefusedVersion: the worker verifies in another way than the version is known for.
        """
        self.version = version
        self.module: Any = import_module(SAMPLER)
        parts: Any = [getattr(model_runner, name, None) for name in ("rejection_sampler", "speculator")]
        self.sampler, self.speculator = parts
        own = self.module.RejectionSampler
        if type(self.sampler) is not own or self.speculator is None:
            raise RefusedVersion(
                f"expected a worker of Model Runner V2 that drafts and verifies by {own.__module__}.{own.__name__}, "
                f"found {type(self.sampler).__name__} and drafts by {type(self.speculator).__name__}"
            )
        self.own_function = import_module(f"{SAMPLER}_utils").rejection_sample
        self.own_sampler = self.sampler.sampler
        self.own_block = self.sampler.use_block_verification
        self.own_rates = self.sampler.synthetic_conditional_rates

    def restore(self) -> None:
        """Verify by vLLM's own method again, as it was configured."""
        self.module.rejection_sample = self.own_function
        self.sampler.sampler = self.own_sampler
        self.sampler.use_block_verification = self.own_block
        self.sampler.synthetic_conditional_rates = self.own_rates
        vars(self.speculator).pop("propose", None)

    def own(self, is_block: bool) -> None:
        """Verify by vLLM's own standard or block method."""
        self.restore()
        self.sampler.use_block_verification = is_block
        self.sampler.synthetic_conditional_rates = None

    def ours(self, verification: CoreVerification) -> None:
        """Verify by the core."""
        self.restore()
        self.module.rejection_sample = verification
        if not self.version.caches_raw_logits:
            self.sampler.sampler = RawRows(self.own_sampler, verification)
        self.speculator.propose = FreshDrafts(self.speculator.propose)
