"""FlashInfer's verification and draw on the same batch, where it is importable.

Softmax in float32 (`flashinfer.sampling.softmax`), truncation by renormalised probabilities, then
`chain_speculative_sampling`, or `sampling_from_probs` for a draw. It draws with its own random
numbers, from a seed that is given, so that it can be captured in a graph.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from torch import Tensor

from harness.kernel_bench.case import Truncation
from harness.kernel_bench.parameters import TOP_K, TOP_P


def is_importable() -> bool:
    return importlib.util.find_spec("flashinfer") is not None


def _probabilities(sampling: Any, logits: Tensor, temperature: float, truncation: Truncation) -> Tensor:
    """[N, V] -> [N, V] float32."""
    probs = sampling.softmax(logits, temperature=temperature)
    if truncation is Truncation.top_p:
        return sampling.top_p_renorm_probs(probs, TOP_P)
    if truncation is Truncation.top_k:
        return sampling.top_k_renorm_probs(probs, TOP_K)
    return probs


def verify_logits(
    target_logits: Tensor, cache: Tensor, slots: Tensor, token_ids: Tensor, temperature: float, truncation: Truncation
) -> tuple[Tensor, Tensor]:
    """As harness.kernel_bench.separate.verify_logits; the second result is all output tokens, [R, K + 1] int32."""
    from flashinfer import sampling

    num_requests, width = token_ids.shape
    vocab_size = target_logits.shape[1]
    target = _probabilities(sampling, target_logits, temperature, truncation)
    proposed = _probabilities(sampling, cache[slots].flatten(0, 1), temperature, truncation)
    # the counts are added to, so they begin at 0
    accepted = torch.zeros(num_requests, dtype=torch.int32, device=target.device)
    emitted = torch.zeros_like(accepted)
    output, accepted, emitted = sampling.chain_speculative_sampling(
        proposed.view(num_requests, width, vocab_size),
        token_ids.int(),
        target.view(num_requests, width + 1, vocab_size),
        accepted,
        emitted,
        seed=0,
        offset=0,
    )
    return emitted, output


def draw_logits(logits: Tensor, temperature: float, truncation: Truncation) -> Tensor:
    """[N, V] -> [N] int32, one token of each row."""
    from flashinfer import sampling

    probs = _probabilities(sampling, logits, temperature, truncation)
    tokens: Tensor = sampling.sampling_from_probs(probs, seed=0, offset=0)
    return tokens
