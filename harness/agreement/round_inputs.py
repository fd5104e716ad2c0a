"""The arguments of one verification or one draw, and the part of them that belongs to some of the requests.

Shapes: R requests, K the largest number of draft tokens, V the target's vocabulary, V_draft the
drafter's, N rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from kernels.contract import Draft, Drawn, Sampling, Streams
from kernels.core import Core
from kernels.reference.target_rows import target_rows
from kernels.reference.truncation import sampling_rows
from kernels.streams import Purpose


def streams_at(streams: Streams, index: Tensor) -> Streams:
    """The streams of the requests in `index` ([n] int64)."""
    return Streams(streams.seeds[index], streams.positions[index], streams.rounds[index])


@dataclass(frozen=True)
class RoundInputs:
    """One round of R requests, none of them a padded slot."""

    target_logits: Tensor
    """[N, V], packed or padded, see kernels.reference.target_rows."""
    draft: Draft
    sampling: Sampling
    streams: Streams

    def take(self, requests: Tensor) -> RoundInputs:
        """The requests in `requests` ([n] int64), with K + 1 target rows each; the draft-logit cache is shared."""
        rows = target_rows(len(self.target_logits), self.draft).rows[requests]
        slots = requests if self.draft.idx_mapping is None else self.draft.idx_mapping[requests]
        draft = replace(
            self.draft,
            token_ids=self.draft.token_ids[requests],
            num_draft_tokens=self.draft.num_draft_tokens[requests],
            idx_mapping=slots,
        )
        return RoundInputs(
            self.target_logits[rows.flatten()],
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

    def take(self, rows: Tensor) -> DrawInputs:
        """Some of the rows ([n] int64)."""
        sampling = sampling_rows(self.sampling, rows)
        return replace(self, logits=self.logits[rows], sampling=sampling, streams=streams_at(self.streams, rows))

    def drawn_by(self, core: Core) -> Drawn:
        """What a core draws."""
        if self.purpose is None:
            return core.coupled_draw(self.logits, self.sampling, self.streams, self.vocab_size, self.draft_to_target)
        return core.draw(self.logits, self.sampling, self.streams, self.purpose, self.draft_to_target)
