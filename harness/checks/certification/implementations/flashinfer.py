"""FlashInfer's `chain_speculative_sampling`, with drafts by its `sampling_from_probs`.

Both draw from torch's CUDA generator, as they do unless they are handed a seed. FlashInfer compiles them when they are
first called, with nvcc and ninja, which takes a minute; it needs apache-tvm-ffi and nvidia-ml-py besides torch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.checks.certification.implementations.kernel_package import import_modules, version_of
from harness.checks.certification.implementations.probabilities import (
    SAMPLED,
    Method,
    accepted_and_next,
    draft_probs,
    drafted_probs,
    drawn,
    features,
    no_coupled_draw,
    seed_generators,
    target_probs,
)
from harness.checks.certification.subject import Functions
from harness.config.schema import SettingsError
from kernels.contract import Draft, Drawn, Sampling, Streams, Verification, VerificationResult
from kernels.random.streams import Purpose

FEATURES = features(frozenset({(Method.probabilistic, SAMPLED, True)}), "random numbers from torch's CUDA generator")


def chain(device: torch.device) -> Functions:
    """The subject; raises SettingsError where FlashInfer, or a GPU, is missing."""
    (sampling_module,) = import_modules("flashinfer", ("flashinfer.sampling",), "pip install flashinfer-python")
    if device.type != "cuda":
        raise SettingsError(f"--subject flashinfer: expected a GPU, found device {device}; give --device cuda")

    def draw(
        logits: Tensor, sampling: Sampling, streams: Streams, purpose: Purpose, draft_to_target: Tensor | None = None
    ) -> Drawn:
        seed_generators(streams)
        probs = draft_probs(logits, sampling.temperature)
        return drawn(sampling_module.sampling_from_probs(probs).long(), probs)

    def verify(
        target_logits: Tensor, draft: Draft, sampling: Sampling, verification: Verification, streams: Streams
    ) -> VerificationResult:
        found, _, num_accepted = sampling_module.chain_speculative_sampling(
            drafted_probs(draft, sampling.temperature),
            draft.token_ids.int(),
            target_probs(target_logits, sampling, draft),
        )
        accepted = num_accepted.long()
        return accepted_and_next(draft, accepted, found.gather(1, accepted[:, None])[:, 0].long())

    return Functions(f"FlashInfer {version_of('flashinfer-python')}", verify, draw, no_coupled_draw, FEATURES)
