"""vLLM's layout of a round and the core's: gathered in one launch each way.

Shapes: R requests, K draft tokens at most, N rows of target logits, S slots of vLLM's request states.

vLLM lays a round out flat: entry b_r + i of `draft_sampled` ([N]) is the token that was fed for target row i of request
r, so that of i = 0 was emitted before and that of i > 0 is draft token i; b_r is `cu_num_logits[r]` and `pos` its
position. A placeholder among the draft tokens is -1. What belongs to a request's whole life is indexed by its slot.

Where the core runs the request's streams: the first token that the round may emit has position pos[b_r] + 1. Every
round emits a token, so no two rounds of a request begin at the same position, and that position serves as the number
of the round. vLLM's own draft noise knows seed and position only, so that a position drafted again would meet its old
noise: the drafts of every round get seeds of their own (`fresh_seeds`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.contract import Streams
from kernels.random.device_streams import DRAFT, words
from kernels.random.streams import Purpose, philox


class Handover(NamedTuple):
    """A round as the core takes it."""

    token_ids: Tensor
    """[R, K] int64."""
    num_draft_tokens: Tensor
    """[R] int64; so are the slots."""
    slots: Tensor
    temperature: Tensor
    """[R] float32."""
    streams: Streams


@triton.jit
def _take_over_kernel(
    draft_sampled, cu_num_logits, pos, idx_mapping, temperatures, seeds, token_ids, whole, temperature, num_requests,
    WIDTH: tl.constexpr, WIDTH_PADDED: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(0).to(tl.int64)
    first = tl.load(cu_num_logits + request).to(tl.int64)
    count = tl.load(cu_num_logits + request + 1).to(tl.int64) - first - 1
    slot = tl.load(idx_mapping + request).to(tl.int64)
    position = tl.load(pos + first).to(tl.int64) + 1
    columns = tl.arange(0, WIDTH_PADDED)
    fed = tl.load(draft_sampled + first + 1 + columns, mask=columns < count, other=0).to(tl.int64)
    tl.store(token_ids + request * WIDTH + columns, fed, mask=columns < WIDTH)
    tl.store(whole + request, count)
    tl.store(whole + num_requests + request, slot)
    tl.store(whole + 2 * num_requests + request, tl.load(seeds + slot))
    tl.store(whole + 3 * num_requests + request, position)
    tl.store(temperature + request, tl.load(temperatures + slot).to(tl.float32))


def take_over(
    draft_sampled: Tensor,
    cu_num_logits: Tensor,
    pos: Tensor,
    idx_mapping: Tensor,
    temperature: Tensor,
    seed: Tensor,
    width: int,
) -> Handover:
    """Gather a round of vLLM's.

    Args:
        draft_sampled: [N] integers.
        cu_num_logits: [R + 1] integers.
        pos: [N] integers.
        idx_mapping: [R] integers, the slots.
        temperature: [S] float32.
        seed: [S] int64.
        width: K.
    """
    num_requests, device = len(cu_num_logits) - 1, draft_sampled.device
    token_ids = torch.empty(num_requests, width, dtype=torch.int64, device=device)
    whole = torch.empty(4, num_requests, dtype=torch.int64, device=device)
    own = torch.empty(num_requests, dtype=torch.float32, device=device)
    if device.type == "cuda":
        _take_over_kernel[(num_requests,)](
            draft_sampled, cu_num_logits, pos, idx_mapping, temperature, seed, token_ids, whole, own, num_requests,
            WIDTH=width, WIDTH_PADDED=triton.next_power_of_2(max(width, 1)), num_warps=1,
        )  # fmt: skip
    else:
        first, slots = cu_num_logits[:-1].long(), idx_mapping.long()
        counts = cu_num_logits[1:].long() - first - 1
        columns = torch.arange(width, device=device)
        places = (first[:, None] + 1 + columns).clamp(max=len(draft_sampled) - 1)
        token_ids.copy_(torch.where(columns < counts[:, None], draft_sampled[places].long(), 0))
        whole.copy_(torch.stack([counts, slots, seed[slots], pos[first].long() + 1]))
        own.copy_(temperature[slots])
    counts, slots, seeds, positions = whole.unbind()
    return Handover(token_ids, counts, slots, own, Streams(seeds, positions, positions))


@triton.jit
def _fresh_seeds_kernel(seeds, idx_mapping, begins, taken, fresh):
    request = tl.program_id(0)
    slot = tl.load(idx_mapping + request).to(tl.int64)
    begin = tl.load(begins + request).to(tl.int64) - tl.load(taken + request).to(tl.int64)
    seed = tl.load(seeds + slot)
    low, high, _, _ = words(seed, DRAFT, begin, begin, 0)
    whole = (high.to(tl.uint32, bitcast=True).to(tl.int64) << 32) | low.to(tl.uint32, bitcast=True).to(tl.int64)
    tl.store(fresh + slot, whole)


def fresh_seeds(seeds: Tensor, idx_mapping: Tensor, begins: Tensor, taken: Tensor, fresh: Tensor) -> None:
    """Write the seed of a round's drafts into each request's slot.

    Args:
        seeds: [S] int64, of the requests.
        idx_mapping: [R] integers, the slots.
        begins: [R] integers; less `taken`, a number that no two rounds of a request share, such as its length.
        taken: [R] integers.
        fresh: [S] int64, written at the slots: 64 bits of Philox(seed; draft, begins - taken).
    """
    if fresh.device.type == "cuda":
        _fresh_seeds_kernel[(len(idx_mapping),)](seeds, idx_mapping, begins, taken, fresh, num_warps=1)
        return
    slots, begin = idx_mapping.long(), begins.long() - taken.long()
    found = philox(seeds[slots], 0, begin, begin, Purpose.draft)
    fresh[slots] = (found[:, 1] << 32) | found[:, 0]
