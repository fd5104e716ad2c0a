"""Verification: a round's draft tokens become output tokens, every method behind one call.

Twin of kernels.reference.verify, which is the specification: the same streams give the same decisions and tokens, up to
float32 rounding at the boundary of a decision.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from .chain.draft_sampling import with_own_sampling
from .chain.draft_stats import with_row_stats
from .chain.launch_args import Round, no_draft, stream_state
from .chain.passes import launch
from .checks import check_draft, check_logits, check_shape, checked_requests
from .contract import (
    Draft,
    RowStats,
    Sampling,
    Streams,
    TokenMask,
    Verification,
    VerificationResult,
)
from .launch.kernel_args import DraftRows, DraftTokens, Output, TargetRows
from .launch.workspace import SHORT_CHUNK, Shape, Workspace
from .methods import Method, TreeMethod, VerificationMethod
from .methods.hooks import ENTROPY, hooks_of
from .rows.ragged_offsets import place_rows
from .rows.token_mask import mask_rows
from .rows.unaligned import in_words_or_lead, read_in_words
from .tree.synthetic import launch_synthetic_walk
from .tree.walk import launch_walk, tree_walk

MAX_COUNT_DRAFTS = 32
"""Positions whose residual masses may be needed are the bits of one number (kernels.chain.accept_count)."""


def _sums_drafts(draft: Draft, target_logits: Tensor, sampling: Sampling) -> bool:
    """Whether the first pass can sum the rows of the drafts beside the target's: where they lie as those do, and
    nothing is cut or forbidden in them."""
    cache = draft.logits
    assert cache is not None
    if sampling.truncates or draft.mask is not None or draft.draft_to_target is not None:
        return False
    if cache.dtype != target_logits.dtype or cache.shape[-1] != target_logits.shape[1]:
        return False
    if target_logits.shape[1] <= SHORT_CHUNK:
        return False
    ways = read_in_words(cache, *cache.stride()[:2]), read_in_words(target_logits, target_logits.stride(0))
    return (ways[0] is None) == (ways[1] is None)


def _stats_to_be(draft: Draft, workspace: Workspace) -> RowStats:
    """Where the first pass leaves the statistics of the draft rows, by slot."""
    assert draft.logits is not None
    size, device = draft.logits.shape[:2], draft.logits.device
    return RowStats(
        workspace.buffer("draft_maximum", size.numel(), torch.float32, device)[: size.numel()].view(size),
        workspace.buffer("draft_normalizer", size.numel(), torch.float64, device)[: size.numel()].view(size),
        workspace.buffer("draft_threshold", size.numel(), torch.float32, device)[: size.numel()].view(size),
    )


def _may_lead(
    draft: Draft,
    reads_draft: bool,
    target_logits: Tensor,
    sampling: Sampling,
    method: Method,
    mask: TokenMask | None,
) -> bool:
    """Whether chunks of target rows may begin at words (kernels.rows.unaligned)."""
    has_words = mask is not None or draft.mask is not None or method.traits.decided_by_noise
    same_type = not reads_draft or (draft.logits is not None and draft.logits.dtype == target_logits.dtype)
    return same_type and not has_words and not sampling.truncates


def draft_rows(draft: Draft, reads_draft: bool, target_logits: Tensor, workspace: Workspace) -> DraftRows:
    """The draft-logit cache as the kernels see it."""
    if draft.logits is None or not reads_draft:
        return no_draft()
    stats = draft.row_stats
    assert stats is not None
    vocab_size, strides = target_logits.shape[1], draft.logits.stride()
    # The kernels take the tokens of a word of the target's.
    fits = draft.logits.element_size() >= target_logits.element_size()
    inverse = None if draft.draft_to_target is None else workspace.to_draft_ids(draft.draft_to_target, vocab_size)
    return DraftRows(
        draft.logits,
        strides[0],
        strides[1],
        draft.logits.shape[2],
        read_in_words(draft.logits, strides[0], strides[1]) if fits else None,
        draft.idx_mapping,
        inverse,
        stats.maximum,
        stats.normalizer,
        stats.threshold,
        stats.maximum.stride(0),
        stats.maximum.stride(1),
        *mask_rows(draft.mask, "draft.mask", (draft.logits.shape[0], draft.token_ids.shape[1]), vocab_size),
    )


def _verify_chains(
    target_logits: Tensor,
    draft: Draft,
    sampling: Sampling,
    verification: Verification,
    streams: Streams,
    workspace: Workspace | None,
    mask: TokenMask | None,
) -> VerificationResult:
    """`verify` by a method for trees where each node has one child: the method for chains that it is there."""
    method = verification.traits.on_chains
    assert method is not None
    chains = replace(draft, parents=None)
    found = verify(target_logits, chains, sampling, Verification(method), streams, workspace, mask)
    places = torch.arange(draft.token_ids.shape[1], device=target_logits.device)
    return replace(found, path=torch.where(places < found.num_accepted[:, None], places, -1))


def verify(
    target_logits: Tensor,
    draft: Draft,
    sampling: Sampling,
    verification: Verification,
    streams: Streams,
    workspace: Workspace | None = None,
    mask: TokenMask | None = None,
) -> VerificationResult:
    """Turn a round's draft tokens into output tokens: the accepted ones, then one recovered or bonus token.

    Values on the device are not looked at before the launch, which would wait for it: a request whose draft cannot be
    verified is flagged in the verdict. That includes a temperature above 0 under greedy verification, which accepts
    nothing then, a number of draft tokens above K, which is taken as K, and packed rows that do not add up, of which
    nothing is read; the reference, which looks, raises an error there.

    Arguments and result are those of kernels.reference.verify, but that target_logits are bfloat16, float16 or float32.
    Without `row_stats` the cached draft rows are read too. A mask changes the code that runs and a free row does
    not: whether there is one must not depend on values either.

    Args:
        workspace: scratch memory; None takes fresh memory for this call.

    Raises:
        ValueError: a tensor's shape, type or layout is not as there, the draft is a tree and the method is for chains
            or does not take its siblings, synthetic verification has too few rates, a rule that counts too many draft
            tokens, or the method has no hooks.
    """
    method, is_chain = verification.method, draft.parents is None
    check_shape(draft, verification)
    # the walks of trees read target rows as strict verification does, one at a time
    read_by = method if is_chain else VerificationMethod.strict
    if isinstance(method, TreeMethod) and (is_chain or draft.token_ids.shape[1] == 0):
        return _verify_chains(target_logits, draft, sampling, verification, streams, workspace, mask)
    hooks, walks_by = hooks_of(read_by), None if is_chain else method.kind.tree_hooks()
    if not is_chain and walks_by is None:
        raise ValueError(f"{method.value}: expected a rule with `tree_hooks`, found none: the reference core runs it")
    check_logits(target_logits, "target_logits", dimensions=2)
    check_draft(draft, target_logits)
    num_requests, width = draft.token_ids.shape
    sampling, streams = checked_requests(num_requests, sampling, streams)
    device, workspace = target_logits.device, workspace or Workspace()
    vocab_size = target_logits.shape[1]
    reads_draft = method.traits.reads_draft and draft.logits is not None and width > 0
    if reads_draft and draft.sampling is not None:
        if draft.sampling.truncates:
            # The kernels of rows that nothing is cut from would not cut the draft's.
            sampling = replace(sampling, truncates=True, is_mixed=False)
        draft = with_own_sampling(draft, sampling, streams, workspace)
    # traversal returns to rows, whose statistics it needs from the start
    may_sum = reads_draft and draft.row_stats is None and not (walks_by is not None and walks_by.leaves_first)
    sums_drafts = may_sum and _sums_drafts(draft, target_logits, sampling)
    if sums_drafts:
        draft = replace(draft, row_stats=_stats_to_be(draft, workspace))
    elif reads_draft and draft.row_stats is None:
        draft = with_row_stats(draft, sampling, workspace)
    counts_jointly = is_chain and hooks.count is not None and reads_draft
    if counts_jointly and width > MAX_COUNT_DRAFTS:
        raise ValueError(
            f"{method.value} verification takes at most {MAX_COUNT_DRAFTS} draft tokens of a request, found {width}; "
            "propose fewer (drafting.num_speculative_tokens)"
        )
    num_positions = max(width, 1) if counts_jointly else 1
    in_words, lead = in_words_or_lead(
        read_in_words(target_logits, target_logits.stride(0)),
        is_chain and _may_lead(draft, reads_draft, target_logits, sampling, method, mask),
    )
    shape = Shape(
        num_requests,
        # of a tree one target row is at hand at a time
        width if is_chain else 0,
        vocab_size,
        num_positions,
        draws_gumbel=method.traits.decided_by_noise,
        sums_entropy=hooks.statistic == ENTROPY,
        has_lead=lead is not None,
        sums_drafts=sums_drafts,
    )
    first_rows, counts = place_rows(len(target_logits), draft)
    verdict = VerificationResult(
        torch.empty(num_requests, width + 1, dtype=torch.int64, device=device),
        torch.empty(num_requests, dtype=torch.int64, device=device),
        torch.empty(num_requests, dtype=torch.bool, device=device),
    )
    round_ = Round(
        hooks=hooks,
        traits=read_by.traits,
        target=TargetRows(
            target_logits,
            target_logits.stride(0),
            vocab_size,
            first_rows,
            in_words,
            lead,
            *mask_rows(mask, "mask", (len(target_logits),), vocab_size),
        ),
        draft=draft_rows(draft, reads_draft, target_logits, workspace),
        tokens=DraftTokens(draft.token_ids, draft.token_ids.stride(0), counts, num_requests, width),
        sampling=sampling,
        streams=stream_state(streams),
        rule=workspace.rule(verification.rule, width, device),
        # a walk keeps the chunks of two steps
        rows=workspace.row_buffers(shape if is_chain else replace(shape, num_requests=2 * num_requests), device),
        state=workspace.round_state(shape, device),
        output=Output(verdict.token_ids, verdict.num_accepted, verdict.invalid, None, None),
        shape=shape,
        workspace=workspace,
        draws_by_rule=hooks.draws_otherwise and bool(verification.rule.values(0)),
    )
    if is_chain:
        launch(round_)
        return verdict
    assert walks_by is not None
    if walks_by.ignores_tokens:
        return replace(verdict, path=launch_synthetic_walk(round_, draft, verification))
    walk = tree_walk(draft, shape, workspace, walks_by)
    launch_walk(round_, draft, walk, walks_by)
    return replace(verdict, path=walk.path)
