"""What the launchers refuse: shapes, types and layouts that a kernel would silently misread. Never looks at values."""

from __future__ import annotations

from dataclasses import replace
from operator import ge

import torch
from torch import Tensor

from .contract import Draft, RowStats, Sampling, Streams, TokenMask, Verification

LOGITS_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
STATS_DTYPES = {"maximum": torch.float32, "normalizer": torch.float64, "threshold": torch.float32}


def check_logits(logits: Tensor, name: str, dimensions: int) -> None:
    """Raises ValueError unless the logits have a supported type and the vocabulary lies together."""
    if logits.dtype not in LOGITS_DTYPES:
        raise ValueError(f"{name} must be bfloat16, float16 or float32, found {logits.dtype}")
    if logits.dim() != dimensions or logits.shape[-1] == 0:
        raise ValueError(
            f"{name} must have {dimensions} dimensions, the last the vocabulary; found {list(logits.shape)}"
        )
    if logits.stride(-1) != 1:
        raise ValueError(f"{name} must lie together along the vocabulary, found strides {logits.stride()}")


def checked_requests(num_requests: int, sampling: Sampling, streams: Streams) -> tuple[Sampling, Streams]:
    """The same with contiguous fields; raises ValueError unless there is one value per request."""
    dtypes = {"temperature": torch.float32, "top_k": torch.int64, "top_p": torch.float32, "min_p": torch.float32}
    dtypes |= {"seeds": torch.int64, "positions": torch.int64, "rounds": torch.int64}
    found = {name: getattr(sampling if hasattr(sampling, name) else streams, name) for name in dtypes}
    for name, tensor in found.items():
        if tensor.shape != (num_requests,) or tensor.dtype != dtypes[name]:
            raise ValueError(
                f"{name} must be [{num_requests}] {dtypes[name]}, one value per request; "
                f"found {list(tensor.shape)} {tensor.dtype}"
            )
        found[name] = tensor.contiguous()
    fields = {name: found[name] for name in ("temperature", "top_k", "top_p", "min_p")}
    return replace(sampling, **fields), Streams(found["seeds"], found["positions"], found["rounds"])


def check_mask(mask: TokenMask, name: str, shape: tuple[int, ...], num_words: int) -> None:
    """Raises ValueError unless a mask has a row for each row of logits and a bit for each token.

    Args:
        mask: the mask.
        name: what the caller calls it.
        shape: that `rows` must have; of two dimensions each may be larger.
        num_words: that a mask needs, at least.
    """
    words, rows = mask.words, mask.rows
    if words.dim() != 2 or words.dtype != torch.int32 or words.shape[1] < num_words or words.stride(1) != 1:
        raise ValueError(
            f"{name}.words must be [M, {num_words} or more] int32 without gaps, bit v % 32 of word v // 32 for "
            f"token v; found {list(words.shape)} {words.dtype}"
        )
    fits = rows.shape == shape if len(shape) == 1 else all(map(ge, rows.shape, shape))
    if rows.dim() != len(shape) or rows.dtype != torch.int64 or not fits:
        at_least = "" if len(shape) == 1 else " or more"
        raise ValueError(
            f"{name}.rows must be {list(shape)}{at_least} int64, one per row of logits, -1 for a free one; "
            f"found {list(rows.shape)} {rows.dtype}"
        )


def check_row_stats(stats: RowStats | None, name: str, shape: tuple[int, ...]) -> None:
    """Raises ValueError unless the fields of statistics lie alike, have their types and room for all rows.

    Args:
        stats: the statistics; None passes.
        name: what the caller calls them.
        shape: of the rows; each dimension of the fields may be larger.
    """
    if stats is None:
        return
    found = {field: getattr(stats, field) for field in STATS_DTYPES}
    fits = len({(tensor.shape, tensor.stride()) for tensor in found.values()}) == 1
    fits &= stats.maximum.dim() == len(shape) and all(map(ge, stats.maximum.shape, shape))
    if not fits or any(tensor.dtype != STATS_DTYPES[field] for field, tensor in found.items()):
        described = ", ".join(
            f"{field} {list(tensor.shape)} {tensor.dtype} with strides {tensor.stride()}"
            for field, tensor in found.items()
        )
        raise ValueError(
            f"the fields of {name} must be {list(shape)} or more, with the same shape and strides, float32, float64 "
            f"and float32; found {described}"
        )


def check_token_map(token_ids: Tensor | None, name: str, num_tokens: int) -> None:
    """Raises ValueError unless a map from a smaller vocabulary has an id for each of its tokens; None passes."""
    if token_ids is None:
        return
    if token_ids.dtype != torch.int64 or token_ids.shape != (num_tokens,) or token_ids.stride(0) != 1:
        raise ValueError(
            f"{name} must be [{num_tokens}] int64 without gaps, an id for each token that the drafter knows; "
            f"found {list(token_ids.shape)} {token_ids.dtype}"
        )


def check_num_tokens(num_tokens: int, vocab_size: int, name: str) -> None:
    """Raises ValueError where a drafter's rows have more tokens than the target, which then have mass for nothing.

    Args:
        num_tokens: of the drafter's rows.
        vocab_size: V.
        name: what the caller calls those rows.
    """
    if num_tokens > vocab_size:
        raise ValueError(
            f"{name} must have at most the target's {vocab_size} tokens, found {num_tokens}; of a padded draft head, "
            f"draw and verify the rows [..., :{vocab_size}]"
        )


def check_is_chain(draft: Draft) -> None:
    """Raises ValueError where the draft is a tree."""
    if draft.parents is not None:
        raise ValueError(
            f"draft.parents: expected None, a chain, found {list(draft.parents.shape)}; trees are verified by the "
            "methods of kernels.methods.TreeMethod"
        )


def check_shape(draft: Draft, verification: Verification) -> None:
    """Raises ValueError where a method does not verify drafts of this shape: a tree by a method for chains, or what its
    rule refuses."""
    if not verification.traits.siblings:
        check_is_chain(draft)
    verification.rule.check(draft)


def check_parent_rows(draft: Draft) -> None:
    """Raises ValueError unless there is one parent for each draft token."""
    parents, size = draft.parents, draft.token_ids.shape
    assert parents is not None
    if parents.shape != size or parents.dtype != torch.int64 or (parents.numel() and parents.stride(-1) != 1):
        raise ValueError(
            f"draft.parents must be {list(size)} int64 without gaps, one for each draft token; found "
            f"{list(parents.shape)} {parents.dtype}"
        )


def check_draft(draft: Draft, target_logits: Tensor) -> None:
    """Raises ValueError unless the fields of a draft fit each other and the target rows."""
    if draft.parents is not None:
        check_parent_rows(draft)
    num_requests, width = draft.token_ids.shape
    most = num_requests * (width + 1)
    if len(target_logits) > most:
        raise ValueError(
            f"target_logits must hold num_draft_tokens + 1 rows per request, at most {most} in all; "
            f"found {len(target_logits)}"
        )
    expected = {
        "token_ids": (draft.token_ids, draft.token_ids.shape),
        "num_draft_tokens": (draft.num_draft_tokens, (num_requests,)),
    }
    if draft.idx_mapping is not None:
        expected["idx_mapping"] = (draft.idx_mapping, (num_requests,))
    for name, (tensor, shape) in expected.items():
        if tensor.dtype != torch.int64 or tensor.shape != shape or (tensor.numel() and tensor.stride(-1) != 1):
            raise ValueError(
                f"{name} must be {list(shape)} int64 without gaps; found {list(tensor.shape)} {tensor.dtype}"
            )
    if draft.logits is None:
        return
    check_logits(draft.logits, "draft.logits", dimensions=3)
    if draft.logits.shape[1] < width:
        raise ValueError(f"draft.logits must hold {width} rows per slot, found {draft.logits.shape[1]}")
    check_num_tokens(draft.logits.shape[2], target_logits.shape[1], "draft.logits")
    check_token_map(draft.draft_to_target, "draft.draft_to_target", draft.logits.shape[2])
    check_row_stats(draft.row_stats, "draft.row_stats", (draft.logits.shape[0], width))
