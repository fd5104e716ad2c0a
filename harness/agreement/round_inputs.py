"""The arguments of one verification, and the part of them that belongs to some of the requests.

Shapes: R requests, K the largest number of draft tokens, V the target's vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from kernels.contract import Draft, Sampling, Streams
from kernels.reference.target_rows import target_rows
from kernels.reference.truncation import sampling_rows


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
