"""vLLM's `rejection_sample` and `gumbel_sample` (vllm/v1/worker/gpu) as a subject.

    pip download --no-deps vllm==0.33.0
    PYTHONPATH=vllm-0.33.0-cp38-abi3-manylinux_2_28_x86_64.whl rejection-lab certify --subject vllm

What reaches vLLM, and what does not:

- the target's logits arrive processed (temperature and truncation, in float32), as its sampler hands them over;
- drafts are drawn from the draft logits at the request's temperature and not truncated, as its speculators do;
- the draft cache holds what the version at hand keeps: logits over temperature in float32, or, where `gumbel_sample`
  fills a `logits_cache`, the head's logits as they are;
- a random number is a function of seed and position, in later versions also of the draft's place in its round, which is
  counted here: draws since the last `verify`. vLLM knows no rounds, so a position that is drafted again may meet the
  numbers of its last time. That is part of what is certified;
- `strict` is vLLM's "standard" with drafts that are the argmax, `probabilistic` "standard" with
  draft_sample_method=probabilistic, `block` its "block" with either.

Arguments are passed by name, those that the version takes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from harness.checks.certification.implementations.kernel_package import import_modules, version_of
from harness.checks.certification.subject import Features, Functions
from harness.plugins.vllm.handover import fresh_seeds
from harness.plugins.vllm.verification import OURS, CoreVerification
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
from kernels.random.streams import Purpose
from kernels.reference.truncation import process, sampling_rows

Method = VerificationMethod
GUMBEL_SAMPLE = "vllm.v1.worker.gpu.sample.gumbel"
REJECTION_SAMPLE = "vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils"
GET = "pip download --no-deps vllm==0.33.0 (or 0.25.1)"
GREEDY, SAMPLED = DraftSampling.greedy, DraftSampling.sampled
FEATURES = Features(
    methods=frozenset({Method.strict, Method.greedy, Method.probabilistic, Method.block}),
    draft_samplings=frozenset({GREEDY, SAMPLED}),
    drafts=frozenset(
        {
            (Method.strict, GREEDY, False),
            (Method.greedy, GREEDY, False),
            (Method.probabilistic, SAMPLED, True),
            (Method.block, GREEDY, False),
            (Method.block, SAMPLED, True),
        }
    ),
    dtypes=frozenset({torch.float32, torch.bfloat16}),
    narrow_draft=False,
    padded_rows=False,
    remark="target logits arrive processed in float32; drafts are not truncated; padded slots are left out before "
    "vLLM; strict is standard with argmax drafts, probabilistic is standard with sampled ones",
)


def vllm_core(device: torch.device) -> Functions:
    """The subject; raises SettingsError where vLLM is missing."""
    gumbel, rejection = import_modules("vllm", (GUMBEL_SAMPLE, REJECTION_SAMPLE), GET, _triton_utils())
    core = VllmCore(gumbel.gumbel_sample, rejection.rejection_sample)
    return Functions(f"vLLM {version_of('vllm')}", core.verify, core.draw, _no_coupled_draw, FEATURES)


def vllm_with_plugin(device: torch.device) -> Functions:
    """vLLM's draft sampler with the plug-in's seeds and verification; raises SettingsError where vLLM is missing."""
    (gumbel,) = import_modules("vllm", (GUMBEL_SAMPLE,), GET, _triton_utils())
    core = PluginCore(gumbel.gumbel_sample, device)
    name = f"vLLM {version_of('vllm')} with harness.plugins.vllm"
    return Functions(name, core.verify, core.draw, _no_coupled_draw, FEATURES)


def _triton_utils() -> dict[str, ModuleType]:
    """What stands for vllm.triton_utils, which looks for GPUs and reads all settings before it hands Triton on."""
    import triton
    import triton.language as tl
    from triton.language.extra import libdevice

    module = ModuleType("vllm.triton_utils")
    vars(module).update(HAS_TRITON=True, triton=triton, tl=tl, tldevice=libdevice)
    return {module.__name__: module}


class VllmCore:
    """The two functions of one version, and how far drafting has come."""

    def __init__(self, gumbel_sample: Callable[..., Any], rejection_sample: Callable[..., Any]) -> None:
        self.gumbel_sample, self.rejection_sample = gumbel_sample, rejection_sample
        self.keeps_raw_logits = "logits_cache" in inspect.signature(gumbel_sample).parameters
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
        rows = torch.arange(len(logits), device=logits.device, dtype=torch.int32)
        token_ids = _call(
            self.gumbel_sample,
            logits=logits,
            expanded_idx_mapping=rows,
            idx_mapping=rows,
            temperature=sampling.temperature,
            seed=streams.seeds,
            pos=streams.positions - 1,
            apply_temperature=True,
            is_drafting=purpose is Purpose.draft,
            logits_cache=logits.new_empty(len(logits), self.step + 1, logits.shape[1]),
            logits_cache_col=torch.tensor(self.step, device=logits.device, dtype=torch.int32),
        ).long()
        self.step += 1
        logprobs = _scaled(logits, sampling.temperature).log_softmax(dim=1).gather(1, token_ids[:, None])[:, 0]
        return Drawn(token_ids, logprobs, torch.zeros_like(token_ids, dtype=torch.bool))

    def verify(
        self, target_logits: Tensor, draft: Draft, sampling: Sampling, verification: Verification, streams: Streams
    ) -> VerificationResult:
        """The end of a round."""
        self.step = 0
        inputs = (target_logits, draft, sampling, verification, streams)
        return _verify(self.rejection_sample, self.keeps_raw_logits, *inputs)


class PluginCore(VllmCore):
    """vLLM's drafts, verified as harness.plugins.vllm does it in a worker."""

    def __init__(self, gumbel_sample: Callable[..., Any], device: torch.device) -> None:
        super().__init__(gumbel_sample, _call)
        raw = self.keeps_raw_logits
        self.verifications = {each: CoreVerification(each, device, caches_raw_logits=raw) for each in OURS}

    def draw(
        self,
        logits: Tensor,
        sampling: Sampling,
        streams: Streams,
        purpose: Purpose,
        draft_to_target: Tensor | None = None,
    ) -> Drawn:
        """The next draft of every request, with the seeds of its round."""
        seeds, rows = torch.zeros_like(streams.seeds), torch.arange(len(logits), device=logits.device)
        fresh_seeds(streams.seeds, rows, streams.positions - self.step, torch.zeros_like(rows), seeds)
        fresh = Streams(seeds, streams.positions, streams.rounds)
        return super().draw(logits, sampling, fresh, purpose, draft_to_target)

    def verify(
        self, target_logits: Tensor, draft: Draft, sampling: Sampling, verification: Verification, streams: Streams
    ) -> VerificationResult:
        """The end of a round."""
        method = Method.strict if verification.method is Method.greedy else verification.method
        self.rejection_sample = self.verifications[Method(method)]
        return super().verify(target_logits, draft, sampling, verification, streams)


def _call(function: Callable[..., Any], **known: Any) -> Any:
    """Call with the arguments that this version takes; raises ValueError when it needs one that is not known here."""
    parameters = inspect.signature(function).parameters
    asked = {name: item for name, item in parameters.items() if item.kind is not item.VAR_KEYWORD}
    needed = [name for name, item in asked.items() if item.default is item.empty and name not in known]
    if needed:
        raise ValueError(f"vLLM's {function.__name__} needs {', '.join(needed)}, which this adapter does not know")
    return function(**{name: value for name, value in known.items() if name in parameters})


def _no_coupled_draw(*arguments: object) -> Drawn:
    raise ValueError("vLLM has no coupled drafts; FEATURES says so")


def _scaled(logits: Tensor, temperature: Tensor) -> Tensor:
    """float32 logits over temperature; those of greedy rows as they are."""
    divisor = torch.where(temperature == 0, 1.0, temperature).view(-1, *[1] * (logits.dim() - 1))
    return logits.float() / divisor


def _verify(
    rejection_sample: Callable[..., Any],
    keeps_raw_logits: bool,
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
    if logits is not None and not keeps_raw_logits:
        logits = _scaled(logits, temperature)
    sampled, num_sampled = _call(
        rejection_sample,
        target_logits=process(target_logits, sampling_rows(own, request)).float(),
        draft_logits=logits,
        draft_sampled=fed[request, local],
        cu_num_logits=cu_num_logits.int(),
        pos=streams.positions[present][request] - 1 + local,
        idx_mapping=slots.int(),
        expanded_idx_mapping=slots[request].int(),
        expanded_local_pos=local.int(),
        temperature=temperature,
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
