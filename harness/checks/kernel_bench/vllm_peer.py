"""vLLM's kernels on the batch of a case, where vLLM is installed: called as its engine calls them.

Its verification wants target and draft rows that are over the temperature. Two ways are timed:

    kernel   both rows are over the temperature beforehand, in the model's own type: as many bytes as the core is given
    path     the target rows as the model leaves them; the call copies them to float32 and divides them, as vLLM's
             sampler does. Draft rows lie in float32 and over the temperature, as its draw leaves them

A draw is that of its drafter, which keeps the row in float32. Nothing is cut here. vLLM draws with random numbers of
its own.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module, metadata
from typing import Any

import torch
from torch import Tensor

from harness.checks.agreement.round_inputs import RoundInputs
from harness.checks.kernel_bench.case import Case, Truncation, Work
from harness.checks.kernel_bench.measure import Rows
from harness.plugins.vllm.signatures import FUNCTIONS, RefusedVersion, checked_version
from kernels.contract import DraftSampling, VerificationMethod

Prepare = Callable[[Case, Any], Callable[[], Any]]
Method = VerificationMethod


def vllm_ways(case: Case) -> dict[str, Prepare]:
    """Name of each way -> what prepares its call; empty without vLLM, or where it has nothing like the case."""
    try:
        name = f"vLLM {metadata.version('vllm')}"
    except metadata.PackageNotFoundError:
        return {}
    if case.temperature == 0 or case.truncation is not Truncation.off:
        return {}
    if case.work is Work.draw:
        return {name: _draw}
    can = case.method in (Method.probabilistic, Method.block) and case.draft_sampling is DraftSampling.sampled
    if case.work is not Work.verify or not can:
        return {}
    return {f"{name}, kernel": _kernel, f"{name}, path": _path}


def _function(name: str) -> Callable[..., Any]:
    """One of vLLM's, of a version that hands over rows as above; raises RefusedVersion for another."""
    if checked_version().caches_raw_logits:
        raise RefusedVersion(
            f"expected a vLLM whose draft rows are over the temperature, found {metadata.version('vllm')}"
        )
    module, path = FUNCTIONS[name]
    found: Callable[..., Any] = getattr(import_module(module), path)
    return found


def _kernel(case: Case, inputs: RoundInputs) -> Callable[[], Any]:
    own, cache = inputs.target_logits.dtype, inputs.draft.logits
    assert cache is not None
    rows, cached = _over(inputs.target_logits, case).to(own), _over(cache, case).to(own)
    verify = _verification(case, inputs)
    return lambda: verify(rows, cached)


def _path(case: Case, inputs: RoundInputs) -> Callable[[], Any]:
    cache = inputs.draft.logits
    assert cache is not None
    rows, cached = inputs.target_logits, _over(cache, case)
    verify = _verification(case, inputs)

    def call() -> Any:
        processed = torch.empty_like(rows, dtype=torch.float32).copy_(rows)
        return verify(processed.div_(case.temperature), cached)

    return call


def _over(rows: Tensor, case: Case) -> Tensor:
    """The same in float32, over the temperature."""
    return rows.float() / case.temperature


def _verification(case: Case, inputs: RoundInputs) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """vLLM's verification of target and draft rows: ([R] number of accepted tokens, [R, K + 1] tokens)."""
    sample = _function("rejection_sample")
    draft, streams, device = inputs.draft, inputs.streams, inputs.target_logits.device
    num_requests, width = draft.token_ids.shape
    slots = torch.arange(num_requests, device=device) if draft.idx_mapping is None else draft.idx_mapping
    local = torch.arange(width + 1, device=device).repeat(num_requests)
    before = torch.zeros(num_requests, 1, dtype=torch.int64, device=device)
    given = {
        "draft_sampled": torch.cat([before, draft.token_ids], dim=1).flatten().int(),
        "cu_num_logits": (torch.arange(num_requests + 1, device=device) * (width + 1)).int(),
        "pos": streams.positions.repeat_interleave(width + 1) + local,
        "idx_mapping": slots.int(),
        "expanded_idx_mapping": slots.repeat_interleave(width + 1).int(),
        "expanded_local_pos": local.int(),
        "temperature": inputs.sampling.temperature[slots.argsort()],
        "seed": streams.seeds[slots.argsort()],
        "num_speculative_steps": width,
        "use_block_verification": case.method is Method.block,
    }

    def verify(rows: Tensor, cached: Tensor) -> tuple[Tensor, Tensor]:
        sampled, num_sampled = sample(target_logits=rows, draft_logits=cached, **given)
        return num_sampled, sampled

    return verify


def _draw(case: Case, inputs: Rows) -> Callable[[], Any]:
    sample, logits = _function("gumbel_sample"), inputs.logits
    num_rows, vocab_size = logits.shape
    kept = torch.empty(num_rows, 1, vocab_size, device=logits.device)
    given = {
        "expanded_idx_mapping": torch.arange(num_rows, device=logits.device).int(),
        "temperature": inputs.sampling.temperature,
        "seed": inputs.streams.seeds,
        "pos": inputs.streams.positions,
        "apply_temperature": True,
        "output_processed_logits": kept,
        "output_processed_logits_col": torch.zeros((), dtype=torch.int64, device=logits.device),
    }
    return lambda: sample(logits=logits, **given)
