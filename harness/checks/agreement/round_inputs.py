"""The arguments of one verification or one draw, and the part of them that belongs to some of the requests.

Shapes: R requests, K the largest number of draft tokens, V the target's vocabulary, V_draft the
drafter's, N rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.contract import (
    Draft,
    Drawn,
    RowStats,
    Sampling,
    SiblingDraws,
    Streams,
    TokenMask,
    Verification,
    VerificationResult,
)
from kernels.core import Core
from kernels.random.streams import Purpose
from kernels.reference.target_rows import present_slots, target_rows
from kernels.reference.token_mask import without_forbidden
from kernels.reference.truncation import sampling_rows


def streams_at(streams: Streams, index: Tensor) -> Streams:
    """The streams of the requests in `index` ([n] int64)."""
    return Streams(streams.seeds[index], streams.positions[index], streams.rounds[index])


@dataclass(frozen=True)
class RoundInputs:
    """One round of R requests, padded slots among them."""

    target_logits: Tensor
    """[N, V], packed or padded, see kernels.reference.target_rows."""
    draft: Draft
    sampling: Sampling
    streams: Streams
    mask: TokenMask | None = None
    """Of the target rows."""

    def verified_by(self, core: Core, verification: Verification) -> VerificationResult:
        """The verdict of a core."""
        arguments = (self.target_logits, self.draft, self.sampling, verification, self.streams)
        return core.verify(*arguments, mask=self.mask)

    def take(self, requests: Tensor) -> RoundInputs:
        """The requests in `requests` ([n] int64, in order, no padded slots), with K + 1 target rows each in which -inf
        stands for forbidden tokens; the draft-logit cache is shared."""
        logits = self.target_logits if self.mask is None else without_forbidden(self.target_logits, self.mask)
        draft, index = self.draft, requests
        packed = present_slots(logits, draft)
        if packed is not None:
            logits, draft, present = packed
            index = torch.searchsorted(present, requests)
        rows = target_rows(len(logits), draft).rows[index]
        draft = replace(
            draft,
            token_ids=draft.token_ids[index],
            num_draft_tokens=draft.num_draft_tokens[index],
            idx_mapping=index if draft.idx_mapping is None else draft.idx_mapping[index],
            parents=None if draft.parents is None else draft.parents[index],
        )
        return RoundInputs(
            logits[rows.flatten()],
            draft,
            sampling_rows(self.sampling, requests),
            streams_at(self.streams, requests),
        )


@dataclass(frozen=True)
class DrawInputs:
    """The arguments of one draw of N rows."""

    logits: Tensor
    """[N, V_draft]."""
    sampling: Sampling
    streams: Streams
    purpose: Purpose | None
    """Of the draw; None for the coupled draw."""
    vocab_size: int
    """V of the target."""
    draft_to_target: Tensor | None = None
    """As for `draw`."""
    mask: TokenMask | None = None

    def take(self, rows: Tensor) -> DrawInputs:
        """Some of the rows ([n] int64), in which -inf stands for forbidden tokens."""
        logits = self.logits if self.mask is None else without_forbidden(self.logits, self.mask, self.draft_to_target)
        sampling, streams = sampling_rows(self.sampling, rows), streams_at(self.streams, rows)
        return replace(self, logits=logits[rows], sampling=sampling, streams=streams, mask=None)

    def drawn_by(self, core: Core, row_stats: RowStats | None = None) -> Drawn:
        """What a core draws; `row_stats`, not of a coupled draw, take the statistics of the rows."""
        given = (self.logits, self.sampling, self.streams)
        if self.purpose is None:
            return core.coupled_draw(*given, self.vocab_size, self.draft_to_target, mask=self.mask)
        return core.draw(*given, self.purpose, self.draft_to_target, row_stats, mask=self.mask)


@dataclass(frozen=True)
class ChildDraws:
    """The arguments of one draw of the children of N nodes, n each."""

    logits: Tensor
    """[N, V_draft]."""
    sampling: Sampling
    streams: Streams
    siblings: SiblingDraws
    branches: Tensor
    """[N, n] int64, as for `draw_children`."""
    draft_to_target: Tensor | None = None
    mask: TokenMask | None = None

    def take(self, rows: Tensor) -> ChildDraws:
        """Some of the rows ([m] int64), in which -inf stands for forbidden tokens."""
        logits = self.logits if self.mask is None else without_forbidden(self.logits, self.mask, self.draft_to_target)
        sampling, streams = sampling_rows(self.sampling, rows), streams_at(self.streams, rows)
        at = self.branches[rows]
        return replace(self, logits=logits[rows], sampling=sampling, streams=streams, branches=at, mask=None)

    def drawn_by(self, core: Core, row_stats: RowStats | None = None) -> Tensor:
        """[N, n] int64, what a core draws; `row_stats` take the statistics of the rows."""
        assert core.draw_children is not None, "a core that verifies trees draws them"
        given = (self.logits, self.sampling, self.streams, self.siblings, self.branches, self.draft_to_target)
        return core.draw_children(*given, mask=self.mask, row_stats=row_stats)
