"""SGLang's verification of one chain of sampled drafts, with its own seeded random numbers.

    pip download --no-deps sglang==0.5.23
    PYTHONPATH=sglang-0.5.23-cp311-cp311-manylinux_2_34_x86_64.whl rejection-lab certify --subject sglang

This is what --speculative-use-rejection-sampling runs at a temperature above 0, with block verification or without, for
requests that have a sampling seed:

- drafts by `fast_sample`: noise by seed, position and place in the round;
- coins by `_seeded_verify_coins`: by seed, length at the begin of the round, and place;
- both verified by the kernel of `chain_speculative_sampling_triton`.

The two functions are taken from the text of modules that import the whole engine; the kernels are imported. Places are
counted here: draws since the last `verify`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from harness.checks.certification.implementations.kernel_package import import_modules, take_functions, version_of
from harness.checks.certification.implementations.probabilities import (
    SAMPLED,
    Method,
    accepted_and_next,
    draft_probs,
    drafted_probs,
    drawn,
    features,
    no_coupled_draw,
    target_probs,
)
from harness.checks.certification.subject import Functions
from kernels.contract import Draft, Drawn, Sampling, Streams, Verification, VerificationResult
from kernels.random.streams import Purpose

GET = "pip download --no-deps sglang==0.5.23"
CHAIN = "sglang.kernels.ops.speculative.reject_sampling"
HASH = "sglang.kernels.ops.sampling.murmur_hash"
DRAFTING, COINS = "sglang.srt.speculative.spec_utils", "sglang.srt.speculative.eagle_utils"
FEATURES = features(
    frozenset({(Method.probabilistic, SAMPLED, True), (Method.block, SAMPLED, True)}),
    "requests have a sampling seed; one chain of drafts",
)


def chain(device: torch.device) -> Functions:
    """The subject; raises SettingsError where SGLang is missing."""
    kernels, _ = import_modules("sglang", (CHAIN, HASH), GET)
    _, fast_sample = take_functions("sglang", DRAFTING, ("_DRAFT_GUMBEL_SEED_SALT", "fast_sample"), {"torch": torch})
    (coins,) = take_functions("sglang", COINS, ("_seeded_verify_coins",), {"torch": torch})
    core = SglangChain(kernels.chain_speculative_sampling_triton, fast_sample, coins)
    return Functions(f"SGLang {version_of('sglang')}", core.verify, core.draw, no_coupled_draw, FEATURES)


class SglangChain:
    """SGLang's functions, and how far drafting has come."""

    def __init__(self, sample: Callable[..., Any], fast_sample: Callable[..., Any], coins: Callable[..., Any]) -> None:
        self.sample, self.fast_sample, self.coins = sample, fast_sample, coins
        self.step = 0

    def draw(
        self,
        logits: Tensor,
        sampling: Sampling,
        streams: Streams,
        purpose: Purpose,
        draft_to_target: Tensor | None = None,
    ) -> Drawn:
        """The next draft of every request."""
        probs = draft_probs(logits, sampling.temperature)
        seeds, positions = streams.seeds, streams.positions
        _, token_ids = self.fast_sample(probs, sampling_seed=seeds, positions=positions, draft_step=self.step)
        self.step += 1
        return drawn(token_ids[:, 0], probs)

    def verify(
        self, target_logits: Tensor, draft: Draft, sampling: Sampling, verification: Verification, streams: Streams
    ) -> VerificationResult:
        """The end of a round."""
        self.step = 0
        num_requests, depth = draft.token_ids.shape
        shape, device = (num_requests, depth + 1), target_logits.device
        coins, final_coins = self.coins(
            sampling_seed=streams.seeds, seq_lens=streams.positions, draft_token_num=depth + 1, device=device
        )
        predicts = torch.zeros(num_requests * (depth + 1), dtype=torch.int32, device=device)
        num_accepted = torch.empty(num_requests, dtype=torch.int32, device=device)
        places = torch.arange(num_requests * (depth + 1), device=device).view(shape)
        self.sample(
            predicts=predicts,
            accept_index=torch.full(shape, -1, dtype=torch.int32, device=device),
            accept_token_num=num_accepted,
            # the root, which is the last token of the request, is not read
            candidates=torch.nn.functional.pad(draft.token_ids, (1, 0)),
            retrive_index=places,
            retrive_next_token=None,
            retrive_next_sibling=None,
            uniform_samples=coins,
            uniform_samples_for_final_sampling=final_coins,
            target_probs=target_probs(target_logits, sampling, draft),
            draft_probs=drafted_probs(draft, sampling.temperature),
            threshold_single=1.0,
            threshold_acc=1.0,
            deterministic=True,
            block_verification=verification.method is Method.block,
        )
        accepted = num_accepted.long()
        return accepted_and_next(draft, accepted, predicts.view(shape).gather(1, accepted[:, None])[:, 0].long())
