"""A stand-in for vLLM's two sampling functions: their signatures and layouts, computed by the reference.

As in vLLM, a random number depends on seed and position only: a position that is drafted again meets its old numbers.
"""

import sys
from types import ModuleType

import torch

from kernels.contract import Draft, Sampling, Streams, Verification, VerificationMethod
from kernels.random.streams import Purpose
from kernels.reference.draw import draw
from kernels.reference.verify import verify

GUMBEL = "vllm.v1.worker.gpu.sample.gumbel"
REJECTION = "vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils"


def sampling_of(temperature):
    off = torch.zeros_like(temperature)
    return Sampling(temperature, off.long(), off + 1, off, truncates=False)


def gumbel_sample(
    logits,
    expanded_idx_mapping,
    temperature,
    seed,
    pos,
    apply_temperature,
    is_drafting,
    logits_cache=None,
    logits_cache_col=None,
    use_fp64=False,
):
    rows = expanded_idx_mapping.long()
    assert apply_temperature and is_drafting
    # the cache takes the logits as they are; the noise depends on their column
    assert logits_cache.dtype == logits.dtype and logits_cache.shape[1] > int(logits_cache_col)
    streams = Streams(seed[rows], pos, torch.zeros_like(pos))
    return draw(logits, sampling_of(temperature[rows]), streams, Purpose.draft).token_ids


def rejection_sample(
    target_logits,
    draft_logits,
    draft_sampled,
    cu_num_logits,
    pos,
    idx_mapping,
    expanded_idx_mapping,
    expanded_local_pos,
    temperature,
    seed,
    num_speculative_steps,
    synthetic_conditional_rates=None,
    use_fp64=False,
    use_block_verification=False,
):
    starts, ends = cu_num_logits[:-1].long(), cu_num_logits[1:].long()
    assert torch.equal(expanded_idx_mapping, idx_mapping.repeat_interleave(ends - starts))
    assert torch.equal(pos, pos[starts].repeat_interleave(ends - starts) + expanded_local_pos)
    columns = torch.arange(1, num_speculative_steps + 1)
    places = (starts[:, None] + columns).clamp(max=len(draft_sampled) - 1)
    slots = idx_mapping.long()
    if draft_logits is not None:
        # target rows come over temperature, cached rows as they were drawn from
        draft_logits = draft_logits.float() / torch.where(temperature == 0, 1.0, temperature)[:, None, None]
    draft = Draft(
        draft_sampled[places],
        ends - starts - 1,
        draft_logits,
        None if draft_logits is None else slots,
    )
    verdict = verify(
        target_logits,
        draft,
        sampling_of((temperature[slots] > 0).float()),
        Verification(VerificationMethod.block if use_block_verification else VerificationMethod.probabilistic),
        Streams(seed[slots], pos[starts], torch.zeros_like(slots)),
    )
    # what follows the emitted tokens is not defined
    return verdict.token_ids.masked_fill(verdict.token_ids < 0, 77), (verdict.num_accepted + 1).int()


def install(monkeypatch) -> None:
    """Put the stand-in where vLLM would be."""
    names = {".".join(path.split(".")[:depth]) for path in (GUMBEL, REJECTION) for depth in range(1, 7)}
    for name in names:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules[GUMBEL], "gumbel_sample", gumbel_sample, raising=False)
    monkeypatch.setattr(sys.modules[REJECTION], "rejection_sample", rejection_sample, raising=False)
