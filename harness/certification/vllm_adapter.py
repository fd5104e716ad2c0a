"""vLLM's `rejection_sample` and `gumbel_sample` (vllm/v1/worker/gpu) as a subject.

    rejection-lab certify --subject harness.certification.vllm_adapter:vllm_core

What reaches vLLM, and what does not:

- the target's logits arrive processed (temperature and truncation, in float32), as its sampler hands them over;
- drafts are drawn from the draft logits without truncation, as its speculators do; the temperature is divided out here,
  in float32, because versions differ in who divides; so the draft cache arrives in float32 too;
- a random number is a function of seed and position; vLLM knows no rounds, so a position that is drafted again meets
  the numbers of its last time. That is part of what is certified;
- `strict` is its rejection sampling with one-hot proposals, `probabilistic` and `block` with cached ones.

Arguments are passed by name, those that the installed version knows. Written from vLLM's source and tested against a
stand-in with the same signatures; not run against vLLM itself.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from harness.certification.subject import Features, Functions
from harness.settings.schema import SettingsError
from kernels.contract import (
    Draft,
    DraftSampling,
    Drawn,
    Sampling,
    Streams,
    Verification,
    VerificationMethod,
    VerificationResult,
)
from kernels.reference.truncation import process, sampling_rows
from kernels.streams import Purpose

Method = VerificationMethod
GUMBEL_SAMPLE = ("vllm.v1.worker.gpu.sample.gumbel",)
REJECTION_SAMPLE = (
    "vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils",
    "vllm.v1.worker.gpu.spec_decode.rejection_sample",
)
"""Where versions of vLLM keep the functions."""
FEATURES = Features(
    methods=frozenset({Method.strict, Method.greedy, Method.probabilistic, Method.block}),
    draft_samplings=frozenset({DraftSampling.greedy, DraftSampling.sampled}),
    narrow_draft=False,
    padded_rows=False,
    remark="target logits arrive processed in float32; drafts are not truncated; padded slots are left out before vLLM",
)


def vllm_core(device: torch.device) -> Functions:
    """The subject; raises SettingsError where vLLM, or a GPU, is missing."""
    gumbel_sample = _find("gumbel_sample", GUMBEL_SAMPLE)
    rejection_sample = _find("rejection_sample", REJECTION_SAMPLE)

    def draw(
        logits: Tensor, sampling: Sampling, streams: Streams, purpose: Purpose, draft_to_target: Tensor | None = None
    ) -> Drawn:
        return _draw(gumbel_sample, logits, sampling, streams, purpose)

    def verify(
        target_logits: Tensor, draft: Draft, sampling: Sampling, verification: Verification, streams: Streams
    ) -> VerificationResult:
        return _verify(rejection_sample, target_logits, draft, sampling, verification, streams)

    return Functions("vLLM", verify, draw, _no_coupled_draw, FEATURES)


def _find(name: str, modules: tuple[str, ...]) -> Callable[..., Any]:
    reasons = []
    for module in modules:
        try:
            found = getattr(importlib.import_module(module), name, None)
        except ImportError as error:
            reasons.append(str(error))
            continue
        if callable(found):
            return found
        reasons.append(f"{module} has no {name}")
    raise SettingsError(
        f"--subject: expected a vLLM with {name} in {' or '.join(modules)}, found none ({'; '.join(reasons)}); "
        "install vLLM beside this project, or choose another subject"
    )


def _call(function: Callable[..., Any], **known: Any) -> Any:
    """Call with the arguments that this version takes; raises ValueError when it needs one that is not known here."""
    parameters = inspect.signature(function).parameters
    needed = [name for name, item in parameters.items() if item.default is item.empty and name not in known]
    if needed:
        raise ValueError(f"vLLM's {function.__name__} needs {', '.join(needed)}, which this adapter does not know")
    return function(**{name: value for name, value in known.items() if name in parameters})


def _no_coupled_draw(*arguments: object) -> Drawn:
    raise ValueError("vLLM has no coupled drafts; FEATURES says so")


def _scaled(logits: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """(float32 logits over temperature, the temperature left to apply: 1, or 0 for greedy rows)."""
    greedy = temperature == 0
    divisor = torch.where(greedy, 1.0, temperature).view(-1, *[1] * (logits.dim() - 1))
    return logits.float() / divisor, (~greedy).float()


def _draw(
    gumbel_sample: Callable[..., Any], logits: Tensor, sampling: Sampling, streams: Streams, purpose: Purpose
) -> Drawn:
    scaled, temperature = _scaled(logits, sampling.temperature)
    rows = torch.arange(len(logits), device=logits.device, dtype=torch.int32)
    token_ids = _call(
        gumbel_sample,
        logits=scaled,
        expanded_idx_mapping=rows,
        idx_mapping=rows,
        temperature=temperature,
        seed=streams.seeds,
        pos=streams.positions - 1,
        apply_temperature=True,
        is_drafting=purpose is Purpose.draft,
    ).long()
    logprobs = scaled.log_softmax(dim=1).gather(1, token_ids[:, None])[:, 0]
    return Drawn(token_ids, logprobs, torch.zeros_like(token_ids, dtype=torch.bool))


def _verify(
    rejection_sample: Callable[..., Any],
    target_logits: Tensor,
    draft: Draft,
    sampling: Sampling,
    verification: Verification,
    streams: Streams,
) -> VerificationResult:
    device, width = target_logits.device, draft.token_ids.shape[1]
    present = (draft.num_draft_tokens >= 0).nonzero()[:, 0]
    counts = draft.num_draft_tokens[present]
    num_requests = len(present)
    own = sampling_rows(sampling, present)

    # One entry per target row: its request, and its place in the request.
    request = torch.repeat_interleave(torch.arange(num_requests, device=device), counts + 1)
    cu_num_logits = torch.cat([counts.new_zeros(1), (counts + 1).cumsum(0)])
    local = torch.arange(len(request), device=device) - cu_num_logits[request]
    # vLLM reads the draft token of place i beside the logits of place i + 1: what was fed to the target.
    fed = torch.cat([draft.token_ids.new_zeros(num_requests, 1), draft.token_ids[present]], dim=1)

    logits = draft.logits if verification.method in (Method.probabilistic, Method.block) else None
    slots, num_slots = torch.arange(num_requests, device=device), num_requests
    if logits is not None:
        slots, num_slots = present if draft.idx_mapping is None else draft.idx_mapping[present], len(logits)
    temperature = torch.zeros(num_slots, device=device).index_copy_(0, slots, own.temperature)
    seeds = torch.zeros(num_slots, dtype=torch.long, device=device).index_copy_(0, slots, streams.seeds[present])
    sampled, num_sampled = _call(
        rejection_sample,
        target_logits=process(target_logits, sampling_rows(own, request)).float(),
        draft_logits=None if logits is None else _scaled(logits, temperature)[0],
        draft_sampled=fed[request, local],
        cu_num_logits=cu_num_logits.int(),
        pos=streams.positions[present][request] - 1 + local,
        idx_mapping=slots.int(),
        expanded_idx_mapping=slots[request].int(),
        expanded_local_pos=local.int(),
        temperature=(temperature > 0).float(),
        seed=seeds,
        num_speculative_steps=width,
        use_block_verification=verification.method is Method.block,
    )
    return _placed(sampled, num_sampled, present, len(draft.token_ids))


def _placed(sampled: Tensor, num_sampled: Tensor, present: Tensor, num_rows: int) -> VerificationResult:
    """vLLM's answer for the present requests, in the rows of the whole batch."""
    columns = torch.arange(sampled.shape[1], device=sampled.device)
    emitted = torch.where(columns < num_sampled[:, None], sampled.long(), -1)
    token_ids = emitted.new_full((num_rows, sampled.shape[1]), -1).index_copy_(0, present, emitted)
    num_accepted = emitted.new_zeros(num_rows).index_copy_(0, present, num_sampled.long() - 1)
    return VerificationResult(token_ids, num_accepted, torch.zeros(num_rows, dtype=torch.bool, device=sampled.device))
