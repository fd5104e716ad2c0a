"""The verification of transformers' assisted generation, `transformers.generation.utils._speculative_sampling`.

It takes one request at a time, so every round costs as many calls as there are requests: some 100 us each, on a CPU.
As in assisted generation, drafts are drawn by `torch.multinomial`, and all random numbers come from torch's global
generator.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.checks.certification.implementations.kernel_package import version_of
from harness.checks.certification.implementations.probabilities import (
    SAMPLED,
    Method,
    accepted_and_next,
    features,
    multinomial_draw,
    no_coupled_draw,
)
from harness.checks.certification.subject import Functions
from harness.config.schema import SettingsError
from kernels.contract import Draft, Sampling, Streams, Verification, VerificationResult
from kernels.reference.truncation import process, sampling_rows

FEATURES = features(
    frozenset({(Method.probabilistic, SAMPLED, True)}), "one request a call; random numbers from torch's generator"
)


def assisted_generation(device: torch.device) -> Functions:
    """The subject; raises SettingsError where transformers has no such function."""
    try:
        from transformers.generation.utils import _speculative_sampling
    except ImportError as error:
        raise SettingsError(
            f"--subject transformers: expected _speculative_sampling in transformers, found {error}; "
            "pip install transformers"
        ) from error

    @torch.inference_mode()
    def verify(
        target_logits: Tensor, draft: Draft, sampling: Sampling, verification: Verification, streams: Streams
    ) -> VerificationResult:
        num_requests, depth = draft.token_ids.shape
        request = torch.arange(num_requests, device=target_logits.device).repeat_interleave(depth + 1)
        target = process(target_logits, sampling_rows(sampling, request)).float().view(num_requests, 1, depth + 1, -1)
        assert draft.logits is not None
        slots = slice(None) if draft.idx_mapping is None else draft.idx_mapping
        drafted = (draft.logits[slots].float() / sampling.temperature[:, None, None])[:, None]
        rounds = zip(draft.token_ids[:, None], drafted, target, strict=True)
        found = [_speculative_sampling(ids, logits, depth, rows) for ids, logits, rows in rounds]
        next_ids = torch.stack([valid[0, -1] for valid, _ in found])
        return accepted_and_next(draft, torch.stack([num_matches for _, num_matches in found]), next_ids)

    return Functions(f"transformers {version_of('transformers')}", verify, multinomial_draw, no_coupled_draw, FEATURES)
