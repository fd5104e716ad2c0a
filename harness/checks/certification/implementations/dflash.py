"""dflash's `_rejection_sample`, with drafts and target rows by its `_sampling_probs` and `_sample_probs`.

    pip download --no-deps dflash==0.1.0
    PYTHONPATH=dflash-0.1.0-py3-none-any.whl rejection-lab certify --subject dflash

| name | drafts |
|---|---|
| `dflash` | DFlash: from a draft row, cut by top-k and top-p as the target's |
| `dflash2` | DFlash 2: from a law over the CANDIDATES best tokens of a row; verification gets it with their indices |

The functions are taken from the text of its model module. Verification takes one request a call. The law over the
candidates is the softmax of their logits, without the path selector's scores, which change q alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from harness.checks.certification.implementations.kernel_package import import_modules, take_functions, version_of
from harness.checks.certification.implementations.probabilities import (
    SAMPLED,
    Method,
    accepted_and_next,
    drawn,
    features,
    no_coupled_draw,
    seed_generators,
)
from harness.checks.certification.subject import Functions
from kernels.contract import Draft, Drawn, Sampling, Streams, Verification, VerificationResult
from kernels.random.streams import Purpose
from kernels.reference.truncation import process, sampling_rows

GET = "pip download --no-deps dflash==0.1.0"
MODEL, NAMES = "dflash.model", ("_sampling_probs", "_sample_probs", "_rejection_sample")
CANDIDATES = 3
FEATURES = replace(
    features(frozenset({(Method.probabilistic, SAMPLED, True)}), ""),
    remark="temperature, top-k and top-p by its own function, for drafts too, but with min-p target rows arrive as "
    "probabilities; one request a call; random numbers from torch's generator",
)


def dense(device: torch.device) -> Functions:
    """DFlash; raises SettingsError where dflash is missing."""
    return _subject(f"dflash {version_of('dflash')}, DFlash", None)


def sparse(device: torch.device) -> Functions:
    """DFlash 2; raises SettingsError where dflash is missing."""
    return _subject(f"dflash {version_of('dflash')}, DFlash 2", CANDIDATES)


def _subject(name: str, num_candidates: int | None) -> Functions:
    import_modules("dflash", ("dflash",), GET)
    sampling_probs, sample_probs, rejection_sample = take_functions("dflash", MODEL, NAMES, {"torch": torch})

    def proposal(logits: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor | None]:
        """(probabilities that drafts are drawn from, the token ids that they belong to, None: all)."""
        if num_candidates is None:
            return _by_profile(sampling_probs, logits, sampling), None
        scores, indices = logits.topk(num_candidates, dim=-1, sorted=False)
        return _by_profile(sampling_probs, scores, _uncut(sampling)), indices

    def draw(
        logits: Tensor, sampling: Sampling, streams: Streams, purpose: Purpose, draft_to_target: Tensor | None = None
    ) -> Drawn:
        seed_generators(streams)
        probs, indices = proposal(logits, sampling)
        places = sample_probs(probs)
        found = drawn(places, probs)
        return found if indices is None else replace(found, token_ids=indices.gather(1, places[:, None])[:, 0])

    @torch.inference_mode()
    def verify(
        target_logits: Tensor, draft: Draft, sampling: Sampling, verification: Verification, streams: Streams
    ) -> VerificationResult:
        num_requests, depth = draft.token_ids.shape
        rows = target_logits.view(num_requests, depth + 1, -1)
        if bool((sampling.min_p > 0).any()):
            request = torch.arange(num_requests, device=rows.device).repeat_interleave(depth + 1)
            target = process(target_logits, sampling_rows(sampling, request)).float().softmax(dim=-1).view_as(rows)
        else:
            target = _by_profile(sampling_probs, rows, sampling)
        assert draft.logits is not None
        slots = slice(None) if draft.idx_mapping is None else draft.idx_mapping
        probs, indices = proposal(draft.logits[slots], sampling)
        where = [None] * num_requests if indices is None else indices[:, None].unbind()
        rounds = zip(draft.token_ids[:, None], target[:, None], probs[:, None], where, strict=True)
        found = [rejection_sample(*given) for given in rounds]
        accepted = torch.tensor([num_accepted for num_accepted, _ in found])
        return accepted_and_next(draft, accepted, torch.stack([token_id for _, token_id in found]))

    return Functions(name, verify, draw, no_coupled_draw, FEATURES)


def _uncut(sampling: Sampling) -> Sampling:
    return replace(sampling, top_k=torch.zeros_like(sampling.top_k), top_p=torch.ones_like(sampling.top_p))


def _by_profile(sampling_probs: Callable[..., Any], logits: Tensor, sampling: Sampling) -> Tensor:
    """`_sampling_probs`, which takes one temperature, top-k and top-p, for requests with several of them."""
    ways = torch.stack([sampling.temperature, sampling.top_p, sampling.top_k.float()], dim=1)
    found = torch.empty_like(logits, dtype=torch.float32)
    for way in ways.unique(dim=0):
        temperature, top_p, top_k = way.tolist()
        rows = (ways == way).all(dim=1)
        found[rows] = sampling_probs(logits[rows], temperature, top_p, int(top_k))
    return found
