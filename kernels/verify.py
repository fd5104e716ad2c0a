"""Verification: a round's draft tokens become output tokens, every method behind one call.

Twin of kernels.reference.verify, which is the specification: the same streams give the same decisions and tokens, up to
float32 rounding at the boundary of a decision.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

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
from .methods import MethodTraits, TreeMethod, VerificationMethod
from .methods.hooks import ENTROPY, Hooks, hooks_of
from .methods.rule import TreeHooks
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


def _may_lead(call: Call, draft: Draft) -> bool:
    """Whether chunks of target rows may begin at words (kernels.rows.unaligned)."""
    has_words = call.mask is not None or draft.mask is not None or call.verification.traits.decided_by_noise
    same_type = not call.reads_draft or (draft.logits is not None and draft.logits.dtype == call.logits.dtype)
    return same_type and not has_words and not call.sampling.truncates


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


class Call(NamedTuple):
    """A call of which nothing can be refused any more."""

    logits: Tensor
    """[N, V] of the target."""
    draft: Draft
    sampling: Sampling
    streams: Streams
    verification: Verification
    mask: TokenMask | None
    hooks: Hooks
    """Of the rule by which target rows are read."""
    traits: MethodTraits
    """Of the same rule."""
    walks_by: TreeHooks | None
    """None of a chain."""
    reads_draft: bool
    """Draft rows are read."""
    counts_jointly: bool
    """The number of accepted tokens needs the masses of all positions."""

    @property
    def is_chain(self) -> bool:
        return self.walks_by is None


def _checked(
    target_logits: Tensor,
    draft: Draft,
    sampling: Sampling,
    verification: Verification,
    streams: Streams,
    mask: TokenMask | None,
) -> Call:
    """Refuse what `verify` names."""
    method, is_chain = verification.method, draft.parents is None
    # the walks of trees read target rows as strict verification does, one at a time
    read_by = method if is_chain else VerificationMethod.strict
    hooks, walks_by = hooks_of(read_by), None if is_chain else method.kind.tree_hooks()
    if not is_chain and walks_by is None:
        raise ValueError(f"{method.value}: expected a rule with `tree_hooks`, found none: the reference core runs it")
    check_logits(target_logits, "target_logits", dimensions=2)
    check_draft(draft, target_logits)
    num_requests, width = draft.token_ids.shape
    sampling, streams = checked_requests(num_requests, sampling, streams)
    reads_draft = method.traits.reads_draft and draft.logits is not None and width > 0
    counts_jointly = is_chain and hooks.count is not None and reads_draft
    if counts_jointly and width > MAX_COUNT_DRAFTS:
        raise ValueError(
            f"{method.value} verification takes at most {MAX_COUNT_DRAFTS} draft tokens of a request, found {width}; "
            "propose fewer (drafting.num_speculative_tokens)"
        )
    if reads_draft and draft.sampling is not None and draft.sampling.truncates:
        # The kernels of rows that nothing is cut from would not cut the draft's.
        sampling = replace(sampling, truncates=True, is_mixed=False)
    return Call(
        target_logits,
        draft,
        sampling,
        streams,
        verification,
        mask,
        hooks,
        read_by.traits,
        walks_by,
        reads_draft,
        counts_jointly,
    )


def _with_statistics(call: Call, workspace: Workspace) -> tuple[Draft, bool]:
    """The draft with statistics of its rows, and whether the first pass is to sum them."""
    draft = call.draft
    if not call.reads_draft:
        return draft, False
    if draft.sampling is not None:
        draft = with_own_sampling(draft, call.sampling, call.streams, workspace)
    if draft.row_stats is not None:
        return draft, False
    # traversal returns to rows, whose statistics it needs from the start
    may_sum = call.walks_by is None or not call.walks_by.leaves_first
    if may_sum and _sums_drafts(draft, call.logits, call.sampling):
        return replace(draft, row_stats=_stats_to_be(draft, workspace)), True
    return with_row_stats(draft, call.sampling, workspace), False


def _planned(call: Call, workspace: Workspace) -> tuple[Round, Draft]:
    """The arguments of the launches, and the draft that they read."""
    draft, sums_drafts = _with_statistics(call, workspace)
    logits, hooks, is_chain = call.logits, call.hooks, call.is_chain
    (num_requests, width), vocab_size, device = draft.token_ids.shape, logits.shape[1], logits.device
    in_words, lead = in_words_or_lead(read_in_words(logits, logits.stride(0)), is_chain and _may_lead(call, draft))
    shape = Shape(
        num_requests,
        # of a tree one target row is at hand at a time
        width if is_chain else 0,
        vocab_size,
        max(width, 1) if call.counts_jointly else 1,
        draws_gumbel=call.verification.traits.decided_by_noise,
        sums_entropy=hooks.statistic == ENTROPY,
        has_lead=lead is not None,
        sums_drafts=sums_drafts,
    )
    first_rows, counts = place_rows(len(logits), draft)
    masked = mask_rows(call.mask, "mask", (len(logits),), vocab_size)
    round_ = Round(
        hooks=hooks,
        traits=call.traits,
        target=TargetRows(logits, logits.stride(0), vocab_size, first_rows, in_words, lead, *masked),
        draft=draft_rows(draft, call.reads_draft, logits, workspace),
        tokens=DraftTokens(draft.token_ids, draft.token_ids.stride(0), counts, num_requests, width),
        sampling=call.sampling,
        streams=stream_state(call.streams),
        rule=workspace.rule(call.verification.rule, width, device),
        # a walk keeps the chunks of two steps
        rows=workspace.row_buffers(shape if is_chain else replace(shape, num_requests=2 * num_requests), device),
        state=workspace.round_state(shape, device),
        output=Output(
            torch.empty(num_requests, width + 1, dtype=torch.int64, device=device),
            torch.empty(num_requests, dtype=torch.int64, device=device),
            torch.empty(num_requests, dtype=torch.bool, device=device),
            None,
            None,
        ),
        shape=shape,
        workspace=workspace,
        draws_by_rule=hooks.draws_otherwise and bool(call.verification.rule.values(0)),
    )
    return round_, draft


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
    check_shape(draft, verification)
    has_drafts = draft.token_ids.shape[1] > 0
    if isinstance(verification.method, TreeMethod) and not (has_drafts and draft.parents is not None):
        return _verify_chains(target_logits, draft, sampling, verification, streams, workspace, mask)
    call = _checked(target_logits, draft, sampling, verification, streams, mask)
    round_, draft = _planned(call, workspace or Workspace())
    output = round_.output
    verdict = VerificationResult(output.token_ids, output.num_accepted, output.invalid)
    if call.walks_by is None:
        launch(round_)
        return verdict
    if call.walks_by.ignores_tokens:
        return replace(verdict, path=launch_synthetic_walk(round_, draft, verification))
    walk = tree_walk(draft, round_.shape, round_.workspace, call.walks_by)
    launch_walk(round_, draft, walk, call.walks_by)
    return replace(verdict, path=walk.path)
