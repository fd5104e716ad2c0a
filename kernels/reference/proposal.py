"""A round's drafts laid beside the target's distributions: everything a verification rule reads.

Shapes: R requests, K the largest number of draft tokens, V the target's vocabulary, V_draft the drafter's,
D the draft rows that are read. X_1..X_K are the draft tokens; column i - 1 of a [R, K] tensor belongs to X_i.

A draft is cut before the first token that cannot be verified: an id outside the vocabulary, a target row or a
draft row without a distribution, or a token that its own draft distribution cannot have produced (probability 0). The
shorter draft is verified as if it had been proposed, so the output keeps its law, and the request is flagged. It is
cut without a flag before a placeholder (-1), where nothing was proposed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ..contract import Draft, Sampling
from .target_rows import target_rows
from .token_mask import allowed_draft_logits
from .truncation import Processed, known_rows, processed, sampling_rows


@dataclass(frozen=True)
class Proposal:
    """One round of every request in the batch."""

    target: Processed
    """Processed target rows, packed or padded."""
    rows: Tensor
    """[R, K + 1] int64, row of `target` that follows the first i draft tokens; beyond K_r it repeats row K_r."""
    token_ids: Tensor
    """[R, K] int64, the draft tokens; 0 where there is none inside the vocabulary."""
    num_draft_tokens: Tensor
    """[R] int64, K_r."""
    num_usable: Tensor
    """[R] int64, draft tokens before the cut."""
    one_hot: Tensor
    """[R] bool, the proposal is taken as certain: no cached logits, or temperature 0."""
    target_logprobs: Tensor
    """[R, K] float64, log p_i(X_i); -inf where there is no draft token, or no target distribution for it."""
    draft_logprobs: Tensor
    """[R, K] float64, log q_i(X_i), -inf where it cannot have been drawn; 0 for one-hot proposals and where there is
    no draft token."""
    draft: Processed | None
    """Processed draft rows, [D, V_draft]; None when every proposal is one-hot."""
    draft_rows: Tensor
    """[R, K] int64, row of `draft` from which X_i was drawn; 0 where there is none."""
    draft_to_target: Tensor | None
    ends_early: Tensor
    """[R] bool, the draft token at `num_usable` is a placeholder."""
    kept: dict[str, Any] = field(default_factory=dict, repr=False)
    """What a rule has worked out of it, for others that need the same."""

    @property
    def usable(self) -> Tensor:
        """[R, K] bool."""
        return leading(self.num_usable, self.token_ids.shape[1])

    @property
    def impossible(self) -> Tensor:
        """[R] bool, the draft token at `num_usable`, or the target row there, cannot be used."""
        last = self.rows.gather(1, self.num_usable[:, None])[:, 0]
        return (self.num_usable < self.num_draft_tokens) & ~self.ends_early | self.target.invalid[last]


class Compared(NamedTuple):
    """What a verification has worked out of a round, for others that read the same rows."""

    rows: Tensor
    """[R, K + 1] int64, see Proposal."""
    target: Processed
    """The target rows, under their masks."""
    proposal: Proposal | None = None
    """None where the rule did not compare with the draft distributions."""

    @classmethod
    def of(cls, target_logits: Tensor, draft: Draft, sampling: Sampling) -> Compared:
        """The target rows of a round; arguments as of `propose`."""
        rows, requests = target_rows(len(target_logits), draft)
        return cls(rows, processed(target_logits, sampling_rows(sampling, requests)))


def leading(counts: Tensor, width: int) -> Tensor:
    """[R] int64 -> [R, width] bool, true in the first `counts` columns."""
    return torch.arange(width, device=counts.device) < counts[:, None]


def to_draft_ids(token_ids: Tensor, draft_to_target: Tensor | None, num_target: int, num_draft: int) -> Tensor:
    """Ids in the drafter's vocabulary, of the shape of `token_ids`; -1 where the drafter does not know the token."""
    if draft_to_target is None:
        return torch.where(token_ids < num_draft, token_ids, -1)
    inverse = torch.full((num_target,), -1, dtype=torch.long, device=token_ids.device)
    inverse[draft_to_target] = torch.arange(num_draft, device=token_ids.device)
    return inverse[token_ids]


def _read_draft(
    cache: Tensor,
    draft: Draft,
    sampling: Sampling,
    token_ids: Tensor,
    wanted: Tensor,
    vocab_size: int,
    reads_stats: bool,
) -> tuple[Processed, Tensor, Tensor]:
    """Processed rows of the `wanted` ([R, K] bool) places of the cache, their index and log q_i(X_i), both [R, K]."""
    requests, positions = wanted.nonzero(as_tuple=True)
    slots = requests if draft.idx_mapping is None else draft.idx_mapping[requests]
    logits = cache.flatten(0, 1).index_select(0, slots * cache.shape[1] + positions)
    logits = allowed_draft_logits(logits, draft, slots, positions)
    given = sampling_rows(sampling, requests)
    # statistics do not tell which token of a row at temperature 0 is certain
    is_certain = bool((given.temperature == 0).any())
    if reads_stats and draft.row_stats is not None and not is_certain:
        rows = known_rows(logits, given, draft.row_stats.at((slots, positions)))
    else:
        rows = processed(logits, given)
    index = torch.arange(len(requests), device=requests.device)
    ids = to_draft_ids(token_ids[requests, positions], draft.draft_to_target, vocab_size, rows.logits.shape[1])
    unknown = (ids < 0) | rows.invalid
    logprobs = torch.zeros(wanted.shape, dtype=torch.float64, device=wanted.device)
    logprobs[wanted] = rows.logprobs_at(index, ids.clamp(min=0)).masked_fill(unknown, -torch.inf)
    draft_rows = torch.zeros_like(token_ids)
    draft_rows[wanted] = index
    return rows, draft_rows, logprobs


def propose(
    target_logits: Tensor,
    draft: Draft,
    sampling: Sampling,
    reads_draft: bool,
    compared: Compared | None = None,
    reads_stats: bool = False,
) -> Proposal:
    """Process the rows of a round and look up the draft tokens in them.

    Args:
        target_logits: [N, V], any floating dtype, packed or padded (see target_rows).
        draft: the proposals, no padded slots among them; the cache is read in place.
        sampling: fields [R].
        reads_draft: whether the rule compares with the draft distributions; if not, every proposal counts as one-hot.
        compared: the target rows, where they have been processed.
        reads_stats: take `draft.row_stats` at their word; else the draft rows are read again.
    """
    rows, target, _ = compared or Compared.of(target_logits, draft, sampling)
    width, vocab_size = draft.token_ids.shape[1], target_logits.shape[1]
    drafted = leading(draft.num_draft_tokens, width)
    inside = (draft.token_ids >= 0) & (draft.token_ids < vocab_size)
    known = drafted & inside & ~target.invalid[rows[:, :width]]
    token_ids = torch.where(drafted & inside, draft.token_ids, 0)
    target_logprobs = target.logprobs_at(rows[:, :width], token_ids).masked_fill(~known, -torch.inf)

    one_hot = (sampling.temperature == 0) | (draft.logits is None or not reads_draft)
    wanted = known & ~one_hot[:, None]
    if draft.logits is None or not bool(wanted.any()):
        draft_processed = None
        draft_rows, draft_logprobs = torch.zeros_like(token_ids), torch.zeros_like(target_logprobs)
    else:
        draft_processed, draft_rows, draft_logprobs = _read_draft(
            draft.logits, draft, draft.sampling or sampling, token_ids, wanted, vocab_size, reads_stats
        )

    valid = known & (draft_logprobs > -torch.inf)
    num_usable = valid.long().cumprod(dim=1).sum(dim=1)
    placeholders = functional.pad(drafted & (draft.token_ids == -1), (0, 1))
    return Proposal(
        target=target,
        rows=rows,
        token_ids=token_ids,
        num_draft_tokens=draft.num_draft_tokens,
        num_usable=num_usable,
        one_hot=one_hot,
        target_logprobs=target_logprobs,
        draft_logprobs=draft_logprobs,
        draft=draft_processed,
        draft_rows=draft_rows,
        draft_to_target=draft.draft_to_target,
        ends_early=placeholders.gather(1, num_usable[:, None])[:, 0],
    )


def on_target_vocab(draft_probs: Tensor, draft_to_target: Tensor | None, vocab_size: int) -> Tensor:
    """Lay rows over the target's vocabulary.

    Args:
        draft_probs: [n, V_draft].
        draft_to_target: [V_draft] int64, target id of each draft id; None when the ids are the same.
        vocab_size: V, of the target.

    Returns:
        [n, V] of the same dtype; the rows themselves where the vocabularies are the same.
    """
    num_rows, num_draft = draft_probs.shape
    if draft_to_target is None:
        return draft_probs if num_draft == vocab_size else functional.pad(draft_probs, (0, vocab_size - num_draft))
    spread = draft_probs.new_zeros(num_rows, vocab_size)
    return spread.scatter_(1, draft_to_target.expand(num_rows, -1), draft_probs)
