"""The only place where output tokens are appended, cut and counted.

Verification emits A accepted draft tokens and one recovered or bonus token. EOS and the length limit may cut the end of
that. What was cut is neither accepted nor rejected evidence, so the counts of a round are those *before the cut*:

- the length limit is known before the round: of m tokens that may still be emitted, only the first m - 1 draft tokens
  can be followed by the token that proves their acceptance, so K_r = min(K, m - 1) whatever the outcome. (Counting a
  rejection at position m but not an acceptance there would bias the rates downwards.)
- EOS as an accepted draft token ends the request: the draft tokens before it were accepted, the EOS takes the place of
  the round's last token, and nothing after it was examined.

So num_accepted <= num_output - 1 always, and the last round of a request is not over-counted.
This module does not know tensors.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from harness.records import CutReason, FinishReason


class Commit(NamedTuple):
    """What one round adds to one request."""

    token_ids: tuple[int, ...]
    num_draft_tokens: int
    num_accepted_tokens: int
    cut_reason: CutReason | None
    finish_reason: FinishReason | None


def commit(
    emitted: Sequence[int],
    num_proposed_tokens: int,
    num_remaining_tokens: int,
    eos_token_ids: Collection[int],
) -> Commit:
    """Cut one round's emitted tokens at EOS and at the length limit, and count what is evidence.

    Args:
        emitted: the accepted draft tokens, then the recovered or bonus token (1..K + 1 token ids).
        num_proposed_tokens: K, the draft tokens of this round.
        num_remaining_tokens: tokens the request may still emit, at least 1.
        eos_token_ids: ids that end the request; empty to go on past them.

    Returns:
        The kept tokens, the counts before the cut, why it was cut, and whether the request is finished.
    """
    assert 1 <= len(emitted) <= num_proposed_tokens + 1 and num_remaining_tokens >= 1
    kept = tuple(emitted[:num_remaining_tokens])
    end = next((index for index, token_id in enumerate(kept) if token_id in eos_token_ids), None)
    if end is not None:
        kept = kept[: end + 1]
    num_accepted = min(len(emitted), len(kept)) - 1
    num_evidence = min(num_proposed_tokens, num_remaining_tokens - 1)
    if len(kept) == len(emitted):
        cut_reason = None
    elif end is not None:
        cut_reason, num_evidence = CutReason.eos, num_accepted
    else:
        cut_reason = CutReason.length
    finish_reason = None
    if end is not None:
        finish_reason = FinishReason.eos
    elif len(kept) == num_remaining_tokens:
        finish_reason = FinishReason.length
    return Commit(kept, num_evidence, num_accepted, cut_reason, finish_reason)
