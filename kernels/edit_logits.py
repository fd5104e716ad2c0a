"""Penalties, biases and the least number of tokens, as changes of target rows along a draft.

Twin of kernels.reference.edit_logits. The rule is that of vLLM's V1 sampler (vllm/v1/sample/sampler.py,
logits_processor/builtin.py, ops/penalties.py), in its order, in front of masks, temperature and truncation. With n_i(v)
the number of times that token v occurs in the output before position i, the draft tokens before it included:

    1. a token that ends the request is -inf while the output before position i is shorter than min_tokens
    2. logit(v) += bias(v)
    3. if v is in the prompt or n_i(v) > 0:  logit(v) = logit(v) / r if logit(v) > 0, else logit(v) r   (repetition r)
    4. logit(v) -= frequency_penalty n_i(v)
    5. logit(v) -= presence_penalty [n_i(v) > 0]

So every target row is the one that plain decoding would have at its position if the drafts before it were accepted, and
a lossless rule stays lossless whatever the drafts are drawn from. What is computed in float32 is rounded once, to the
dtype of the rows.

An edit touches the tokens that occur and no others: a row of V logits is not read. For that each slot keeps a list of
its distinct tokens (TokenTally). A first kernel brings it up to date with what was emitted since, and appends the
drafts of the round; a second one goes through it for each target row. Bytes, worked out for R = 64, K = 3, V = 128,256
in bfloat16 and texts of 1,000 distinct tokens, beside 66 MB of rows that verification reads:

    the tokens that occur, in sectors of 32 bytes, read and written     16 MB
    whole rows, read and written, and a table of counts                164 MB

Shapes: R requests, K draft tokens, C tokens of a text at most, V the vocabulary, F and M as in kernels.contract.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .checks import check_logits
from .contract import LogitEdits, Texts, TokenTally

LISTED = 512
"""Tokens of a list that a program edits at a time, or compares with those of a round."""
PAIRS = 4096
"""Of a new token and one of a list, that are compared at a time, at most."""
READ_AT_ONCE = 32
"""Tokens of a text that are taken into a list at a time, where they are more than a round's."""
COMPARED = PAIRS // READ_AT_ONCE
"""Tokens of a list that they are compared with at a time."""
ROWS_APART = {"draft_ids", "parents", "texts.token_ids"}
"""Tensors whose rows may lie any distance apart."""
MAX_PROGRAMS = 4
"""For each target row, among which its list is dealt out."""


@triton.jit
def _take_in(tally, slot, size, tokens, vocab_size, is_output, in_prompt, LISTED: tl.constexpr):
    """Count new tokens in a slot's list, and append those that are not in it.

    Args:
        tally: (token_ids, num_outputs, in_prompt, M).
        slot: int64.
        size: int32, tokens in the list.
        tokens: [N] int32; those outside the vocabulary are left out.
        vocab_size: V.
        is_output, in_prompt: [N] bool, what each counts as.

    Returns:
        int32, tokens in the list now.
    """
    listed, outputs, prompts = tally[0] + slot * tally[3], tally[1] + slot * tally[3], tally[2] + slot * tally[3]
    is_there = (tokens >= 0) & (tokens < vocab_size)
    is_known = tl.zeros(tokens.shape, tl.int32)
    for start in range(0, size, LISTED):
        places = start + tl.arange(0, LISTED)
        inside = places < size
        ids = tl.load(listed + places, mask=inside, other=-1)
        same = (ids[:, None] == tokens[None, :]) & is_there[None, :]
        is_known = tl.maximum(is_known, tl.max(same.to(tl.int32), axis=0))
        num_more = tl.sum((same & is_output[None, :]).to(tl.int32), axis=1)
        counts = tl.load(outputs + places, mask=inside, other=0)
        tl.store(outputs + places, counts + num_more, mask=inside & (num_more > 0))
        is_prompt = tl.max((same & in_prompt[None, :]).to(tl.int32), axis=1)
        tl.store(prompts + places, is_prompt.to(tl.int8), mask=inside & (is_prompt > 0))
    order = tl.arange(0, tokens.shape[0])
    same = (tokens[:, None] == tokens[None, :]) & is_there[None, :]
    comes_before = tl.max((same & (order[None, :] < order[:, None])).to(tl.int32), axis=1)
    is_new = is_there & (is_known == 0) & (comes_before == 0)
    places = size + tl.cumsum(is_new.to(tl.int32), axis=0) - 1
    tl.store(listed + places, tokens, mask=is_new)
    tl.store(outputs + places, tl.sum((same & is_output[None, :]).to(tl.int32), axis=1), mask=is_new)
    is_prompt = tl.max((same & in_prompt[None, :]).to(tl.int32), axis=1)
    tl.store(prompts + places, is_prompt.to(tl.int8), mask=is_new)
    # other threads of the program read them
    tl.debug_barrier()
    return size + tl.sum(is_new.to(tl.int32))


@triton.jit
def _take_in_text(
    tally, slot, size, texts, first, length, prompt_length, vocab_size, NUM: tl.constexpr, LISTED: tl.constexpr
):
    """`_take_in` of NUM tokens of a slot's text from `first` on, or as many as there are."""
    places = first + tl.arange(0, NUM)
    is_told, in_prompt = places < length, places < prompt_length
    tokens = tl.load(texts[0] + slot * texts[1] + places, mask=is_told, other=-1).to(tl.int32)
    return _take_in(tally, slot, size, tokens, vocab_size, in_prompt == 0, in_prompt, LISTED)


@triton.jit
def _tally_kernel(
    decides,  # [R]
    draft_ids,  # [R, K]
    draft_stride,
    num_drafts,  # K
    texts,  # ([>= R, C], distance of its rows)
    capacity,  # C
    lengths,  # [>= R]
    prompt_lengths,  # [>= R]
    repetition_penalties,  # [R]
    frequency_penalties,  # [R]
    presence_penalties,  # [R]
    fixed_ids,  # [R, F]
    num_fixed,  # F
    vocab_size,
    tally,  # ([S, M] token_ids, [S, M] num_outputs, [S, M] in_prompt, M)
    num_read,  # [S]
    num_kept,  # [S]
    num_listed,  # [S]
    TOKENS: tl.constexpr,
    FIXED: tl.constexpr,
    READ_AT_ONCE: tl.constexpr,
    COMPARED: tl.constexpr,
    LISTED: tl.constexpr,
):
    slot = tl.program_id(0).to(tl.int64)
    decides_now = tl.load(decides + slot) != 0
    read = tl.load(num_read + slot).to(tl.int32)
    size = tl.load(num_kept + slot).to(tl.int32)
    # what was beyond a slot's end lies at no place of it
    length = tl.minimum(tl.load(lengths + slot), capacity).to(tl.int32)
    prompt_length = tl.load(prompt_lengths + slot).to(tl.int32)
    reads_prompt = tl.load(repetition_penalties + slot) != 1.0
    reads_output = (tl.load(frequency_penalties + slot) != 0.0) | (tl.load(presence_penalties + slot) != 0.0)
    reads_output = reads_output | reads_prompt
    if decides_now:
        if read == 0:
            columns = tl.arange(0, FIXED)
            places = slot * tally[3] + columns
            ids = tl.load(fixed_ids + slot * num_fixed + columns, mask=columns < num_fixed, other=-1)
            tl.store(tally[0] + places, ids, mask=columns < num_fixed)
            tl.store(tally[1] + places, tl.zeros_like(ids), mask=columns < num_fixed)
            tl.store(tally[2] + places, tl.zeros_like(ids).to(tl.int8), mask=columns < num_fixed)
            size = tl.full((), 0, tl.int32) + num_fixed
            tl.debug_barrier()
            if reads_prompt == 0:
                read = prompt_length
        if reads_output == 0:
            read = length
        # of a prompt many at a time
        for first in range(read, length - TOKENS, READ_AT_ONCE):
            size = _take_in_text(
                tally, slot, size, texts, first, length, prompt_length, vocab_size, READ_AT_ONCE, COMPARED
            )
            read = first + READ_AT_ONCE
        size = _take_in_text(tally, slot, size, texts, read, length, prompt_length, vocab_size, TOKENS, LISTED)
        columns = tl.arange(0, TOKENS)
        is_draft = columns < tl.where(reads_output, num_drafts, 0)
        drafts = tl.load(draft_ids + slot * draft_stride + columns, mask=is_draft, other=-1).to(tl.int32)
        is_none = columns < 0
        size_with_drafts = _take_in(tally, slot, size, drafts, vocab_size, is_none, is_none, LISTED)
        tl.store(num_read + slot, length.to(tl.int64))
        tl.store(num_kept + slot, size.to(tl.int64))
        tl.store(num_listed + slot, size_with_drafts.to(tl.int64))


@triton.jit
def _edit_kernel(
    logits,  # [R * (K + 1), V]
    stride,
    decides,  # [R]
    draft_ids,  # [R, K]
    draft_stride,
    parents,  # [R, K]; None for chains
    parents_stride,
    num_drafts,  # K
    lengths,  # [>= R]
    prompt_lengths,  # [>= R]
    repetition_penalties,  # [R]
    frequency_penalties,  # [R]
    presence_penalties,  # [R]
    min_tokens,  # [R]
    biases,  # [R, F]
    ends,  # [R, F] as bytes
    num_fixed,  # F
    tally,  # ([S, M] token_ids, [S, M] num_outputs, [S, M] in_prompt, M)
    num_listed,  # [S]
    LISTED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    request, index = row // (num_drafts + 1), (row % (num_drafts + 1)).to(tl.int32)
    size = tl.load(num_listed + request).to(tl.int32)
    size = tl.where(tl.load(decides + request) != 0, size, 0)
    repetition = tl.load(repetition_penalties + request)
    frequency = tl.load(frequency_penalties + request)
    presence = tl.load(presence_penalties + request)
    first_draft, first_parent = draft_ids + request * draft_stride, parents
    if parents is not None:
        first_parent = parents + request * parents_stride
    for start in range(tl.program_id(1) * LISTED, size, tl.num_programs(1) * LISTED):
        places = start + tl.arange(0, LISTED)
        inside = places < size
        ids = tl.load(tally[0] + request * tally[3] + places, mask=inside, other=-1)
        inside = inside & (ids >= 0)
        num_outputs = tl.load(tally[1] + request * tally[3] + places, mask=inside, other=0)
        in_prompt = tl.load(tally[2] + request * tally[3] + places, mask=inside, other=0) != 0
        num_before = (tl.load(lengths + request) - tl.load(prompt_lengths + request)).to(tl.int32)
        node = index - 1
        for _ in range(index):
            token = tl.load(first_draft + node, mask=node >= 0, other=-1).to(tl.int32)
            num_outputs += (inside & (ids == token)).to(tl.int32)
            num_before += (node >= 0).to(tl.int32)
            if parents is None:
                node = node - 1
            else:
                node = tl.load(first_parent + node, mask=node >= 0, other=-1).to(tl.int32)
        is_fixed = inside & (places < num_fixed)
        bias = tl.load(biases + request * num_fixed + places, mask=is_fixed, other=0.0)
        is_end = tl.load(ends + request * num_fixed + places, mask=is_fixed, other=0) != 0
        waits = is_end & (num_before < tl.load(min_tokens + request))
        is_output = num_outputs > 0
        occurs = is_output | in_prompt
        addresses = logits + row * stride + ids
        edited = tl.load(addresses, mask=inside, other=0.0).to(tl.float32) + bias
        scaled = tl.where(edited > 0, tl.div_rn(edited, repetition + tl.zeros_like(edited)), edited * repetition)
        edited = tl.where(occurs, scaled, edited)
        edited = edited - frequency * num_outputs.to(tl.float32)
        edited = edited - presence * is_output.to(tl.float32)
        edited = tl.where(waits, -float("inf"), edited)
        tl.store(addresses, edited.to(logits.dtype.element_ty), mask=inside & (occurs | is_fixed))


def check_arguments(
    target_logits: Tensor,
    draft_ids: Tensor,
    decides: Tensor,
    texts: Texts,
    edits: LogitEdits,
    tally: TokenTally,
    parents: Tensor | None,
) -> None:
    """Raises ValueError where a tensor of `edit_logits` would be misread."""
    num_requests, num_drafts = draft_ids.shape
    num_fixed, size = edits.token_ids.shape[1], tally.token_ids.shape[1]
    if len(target_logits) != num_requests * (num_drafts + 1):
        raise ValueError(
            f"target_logits must have K + 1 rows of each request, {num_requests} * {num_drafts + 1}; found "
            f"{len(target_logits)}"
        )
    wanted = {
        "draft_ids": (draft_ids, (num_requests, num_drafts), torch.int64),
        "decides": (decides, (num_requests,), torch.int64),
        "texts.lengths": (texts.lengths[:num_requests], (num_requests,), torch.int64),
        "texts.prompt_lengths": (texts.prompt_lengths[:num_requests], (num_requests,), torch.int64),
        "texts.token_ids": (texts.token_ids[:num_requests], (num_requests, texts.token_ids.shape[1]), torch.int64),
        "edits.min_tokens": (edits.min_tokens, (num_requests,), torch.int64),
        "edits.token_ids": (edits.token_ids, (num_requests, num_fixed), torch.int32),
        "edits.biases": (edits.biases, (num_requests, num_fixed), torch.float32),
        "edits.ends": (edits.ends, (num_requests, num_fixed), torch.bool),
        "tally.token_ids": (tally.token_ids[:num_requests], (num_requests, size), torch.int32),
        "tally.num_outputs": (tally.num_outputs[:num_requests], (num_requests, size), torch.int32),
        "tally.in_prompt": (tally.in_prompt[:num_requests], (num_requests, size), torch.int8),
    }
    for name in ("repetition_penalty", "frequency_penalty", "presence_penalty"):
        wanted[f"edits.{name}"] = getattr(edits, name), (num_requests,), torch.float32
    for name in ("num_read", "num_kept", "num_listed"):
        wanted[f"tally.{name}"] = getattr(tally, name)[:num_requests], (num_requests,), torch.int64
    if parents is not None:
        wanted["parents"] = parents, (num_requests, num_drafts), torch.int64
    for name, (tensor, shape, dtype) in wanted.items():
        lies_together = tensor.is_contiguous() or (name in ROWS_APART and tensor.stride(-1) == 1)
        if tensor.shape != shape or tensor.dtype != dtype or not lies_together:
            raise ValueError(
                f"{name} must be {list(shape)} {dtype} without gaps; found {list(tensor.shape)} {tensor.dtype}, "
                f"strides {tensor.stride()}"
            )
    needed = num_fixed + texts.token_ids.shape[1] + num_drafts
    if size < needed:
        raise ValueError(
            f"tally must have room for {needed} tokens of a slot, biased ones, text and drafts; found {size}"
        )


def edit_logits(
    target_logits: Tensor,
    draft_ids: Tensor,
    decides: Tensor,
    texts: Texts,
    edits: LogitEdits,
    tally: TokenTally | None = None,
    parents: Tensor | None = None,
) -> None:
    """Change the target rows of a round in place, each for its position along the draft.

    Args:
        target_logits: [R * (K + 1), V], K + 1 rows of each request; bfloat16, float16 or float32. Changed in place.
        draft_ids: [R, K] int64; row i of a request counts the first i of them, but no id outside the vocabulary.
        decides: [R] int64, 0 for a request whose rows stay as they are.
        texts: of the requests, up to the last token that is known.
        edits: fields [R].
        tally: of their slots, rows [>= R]; brought up to date. `num_read` must be 0 in the first call of a request,
            and a text may only grow between calls. None counts every text anew.
        parents: [R, K] int64 of trees, see Draft.parents: row i + 1 counts node i and those above it. None: chains.

    Raises:
        ValueError: a tensor's shape, type or layout is not as above.
    """
    check_logits(target_logits, "target_logits", dimensions=2)
    num_requests, num_drafts = draft_ids.shape
    num_fixed = edits.token_ids.shape[1]
    if tally is None:
        size = num_fixed + texts.token_ids.shape[1] + num_drafts
        tally = TokenTally.empty(num_requests, size, target_logits.device)
    check_arguments(target_logits, draft_ids, decides, texts, edits, tally, parents)
    if num_requests == 0:
        return
    lists = (tally.token_ids, tally.num_outputs, tally.in_prompt, tally.token_ids.shape[1])
    num_tokens = triton.next_power_of_2(num_drafts + 1)
    strengths = {
        "repetition_penalties": edits.repetition_penalty,
        "frequency_penalties": edits.frequency_penalty,
        "presence_penalties": edits.presence_penalty,
    }
    _tally_kernel[(num_requests,)](
        decides=decides,
        draft_ids=draft_ids,
        draft_stride=draft_ids.stride(0),
        num_drafts=num_drafts,
        texts=(texts.token_ids, texts.token_ids.stride(0)),
        capacity=texts.token_ids.shape[1],
        lengths=texts.lengths,
        prompt_lengths=texts.prompt_lengths,
        **strengths,
        fixed_ids=edits.token_ids,
        num_fixed=num_fixed,
        vocab_size=target_logits.shape[1],
        tally=lists,
        num_read=tally.num_read,
        num_kept=tally.num_kept,
        num_listed=tally.num_listed,
        TOKENS=num_tokens,
        FIXED=triton.next_power_of_2(max(num_fixed, 1)),
        READ_AT_ONCE=READ_AT_ONCE,
        COMPARED=COMPARED,
        LISTED=min(LISTED, PAIRS // num_tokens),
        num_warps=4 if num_tokens <= READ_AT_ONCE else 16,
    )
    _edit_kernel[(len(target_logits), min(MAX_PROGRAMS, triton.cdiv(tally.token_ids.shape[1], LISTED)))](
        logits=target_logits,
        stride=target_logits.stride(0),
        decides=decides,
        draft_ids=draft_ids,
        draft_stride=draft_ids.stride(0),
        parents=parents,
        parents_stride=0 if parents is None else parents.stride(0),
        num_drafts=num_drafts,
        lengths=texts.lengths,
        prompt_lengths=texts.prompt_lengths,
        **strengths,
        min_tokens=edits.min_tokens,
        biases=edits.biases,
        ends=edits.ends.view(torch.uint8),
        num_fixed=num_fixed,
        tally=lists,
        num_listed=tally.num_listed,
        LISTED=LISTED,
        num_warps=4,
        # a product and a difference round one after the other, as in the reference
        enable_fp_fusion=False,
    )
