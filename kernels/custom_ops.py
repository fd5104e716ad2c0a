"""The core for engines that compile their step: `torch.compile(fullgraph=True)` and CUDA graphs pass through it.

The functions take and return what the core's functions of the same names do, with `counters` in the place of a
workspace, and call custom operations of torch (kernels.operations). Who does not compile calls the core's own functions
and does without the dispatcher.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .checks import check_is_chain
from .contract import Draft, Drawn, RowStats, Sampling, Streams, TokenMask, Verification, VerificationResult
from .launch.call_memory import counters_for
from .methods import NAMED_METHODS, TreeMethod, VerificationMethod
from .operations import MASK, NAMESPACE, SAMPLING, STATS, STREAMS, register
from .random.streams import Purpose
from .reference.logprobs import TopLogprobs, check_processed

__all__ = ["counters_for", "coupled_draw", "draw", "logprobs", "verify"]

register()
OPERATIONS = getattr(torch.ops, NAMESPACE)
for _method in NAMED_METHODS.values():
    # a graph that is being compiled imports nothing: what a Verification needs is there before
    _ = _method.parameter_names


def verify(
    target_logits: Tensor,
    draft: Draft,
    sampling: Sampling,
    verification: Verification,
    streams: Streams,
    mask: TokenMask | None = None,
    counters: Tensor | None = None,
) -> VerificationResult:
    """As kernels.verify.verify on CUDA, as kernels.reference.verify elsewhere.

    Args:
        counters: of `counters_for` as many requests and drafts or more, which the call leaves at 0; None fills its own,
            one small kernel more. Calls that may run at the same time need two.

    Raises:
        ValueError: the draft is a tree and the method is for chains, or it is an OwnMethod; the rest when it runs.
    """
    method, tree = verification.method, {}
    if isinstance(method, TreeMethod):
        tree = {"parents": draft.parents, "siblings": draft.siblings.value}
    elif isinstance(method, VerificationMethod):
        check_is_chain(draft)
    else:
        raise ValueError(f"expected a method of kernels.methods, found {method.value}: no operation runs it")
    operation = OPERATIONS.verify_tree if isinstance(method, TreeMethod) else OPERATIONS.verify
    token_ids, num_accepted, invalid, *path = operation(
        target_logits,
        draft.token_ids,
        draft.num_draft_tokens,
        **_of_rows(sampling, streams, mask),
        method=method.value,
        parameters=verification.rule.numbers(),
        draft_logits=draft.logits,
        idx_mapping=draft.idx_mapping,
        draft_to_target=draft.draft_to_target,
        **_named("draft_", draft.row_stats, STATS),
        **_named("draft_mask_", draft.mask, MASK),
        **_named("draft_", draft.sampling, SAMPLING),
        draft_truncates=draft.sampling is None or draft.sampling.truncates,
        **tree,
        counters=counters,
    )
    return VerificationResult(token_ids, num_accepted, invalid, path=path[0] if path else None)


def draw(
    logits: Tensor,
    sampling: Sampling,
    streams: Streams,
    purpose: Purpose,
    draft_to_target: Tensor | None = None,
    row_stats: RowStats | None = None,
    mask: TokenMask | None = None,
    counters: Tensor | None = None,
) -> Drawn:
    """As kernels.draw.draw on CUDA, as kernels.reference.draw elsewhere; `counters` as for `verify`, K = 0."""
    found = OPERATIONS.draw(
        logits,
        **_of_rows(sampling, streams, mask),
        purpose=int(purpose),
        draft_to_target=draft_to_target,
        **_named("", row_stats, STATS),
        counters=counters,
    )
    return Drawn(*found)


def coupled_draw(
    logits: Tensor,
    sampling: Sampling,
    streams: Streams,
    vocab_size: int,
    draft_to_target: Tensor | None = None,
    mask: TokenMask | None = None,
    counters: Tensor | None = None,
) -> Drawn:
    """As kernels.draw.coupled_draw on CUDA, as kernels.reference.coupled elsewhere, without row statistics."""
    found = OPERATIONS.coupled_draw(
        logits,
        **_of_rows(sampling, streams, mask),
        vocab_size=vocab_size,
        draft_to_target=draft_to_target,
        counters=counters,
    )
    return Drawn(*found)


def logprobs(
    logits: Tensor,
    token_ids: Tensor,
    num_top: int,
    sampling: Sampling | None = None,
    mask: TokenMask | None = None,
    counters: Tensor | None = None,
) -> TopLogprobs:
    """As kernels.logprobs.logprobs on CUDA, as kernels.reference.logprobs elsewhere."""
    check_processed(sampling, mask)
    found = OPERATIONS.logprobs(
        logits,
        token_ids,
        num_top,
        **_named("", sampling, SAMPLING),
        truncates=sampling is not None and sampling.truncates,
        **_named("mask_", mask, MASK),
        counters=counters,
    )
    return TopLogprobs(*found)


def _of_rows(sampling: Sampling, streams: Streams, mask: TokenMask | None) -> dict[str, Any]:
    """What verification and draws take of each request or row."""
    return {
        **_named("", sampling, SAMPLING),
        **_named("", streams, STREAMS),
        **_named("mask_", mask, MASK),
        "truncates": sampling.truncates,
        "is_mixed": sampling.is_mixed,
    }


def _named(prefix: str, group: object, names: tuple[str, ...]) -> dict[str, Tensor | None]:
    """The tensors of a group under the names that an operation has for them; all None without it."""
    return {prefix + name: None if group is None else getattr(group, name) for name in names}
