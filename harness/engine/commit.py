"""The only place where output tokens are appended, cut and counted.

Verification emits A accepted draft tokens and one recovered or bonus token. EOS and the length limit may cut the end of
that. What was cut is neither accepted nor rejected evidence. What counts must be settled *before* verification, or the
rates are biased: were a rejection counted where an acceptance would have been cut, they would be too low. So

    K_r = min(K, m - 1, index of the first EOS among the draft tokens),    A_r = min(A, K_r)

- of m tokens that may still be emitted, only the first m - 1 draft tokens can be followed by another token;
- an accepted EOS ends the request and is its last token, so a drafted EOS and what follows it count neither way.

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
    draft_ids: Sequence[int],
    num_remaining_tokens: int,
    eos_token_ids: Collection[int],
) -> Commit:
    """Cut one round's emitted tokens at EOS and at the length limit, and count what is evidence.

    Args:
        emitted: the accepted draft tokens, then the recovered or bonus token (1..K + 1 token ids).
        draft_ids: the K draft tokens of this round.
        num_remaining_tokens: tokens the request may still emit, at least 1.
        eos_token_ids: ids that end the request; empty to go on past them.

    Returns:
        The kept tokens, the counts before the cut, why it was cut, and whether the request is finished.
    """
    assert 1 <= len(emitted) <= len(draft_ids) + 1 and num_remaining_tokens >= 1
    kept = tuple(emitted[:num_remaining_tokens])
    end = _first_eos(kept, eos_token_ids)
    if end is not None:
        kept = kept[: end + 1]
    cut_reason = None
    if len(kept) < len(emitted):
        cut_reason = CutReason.length if end is None else CutReason.eos
    drafted_end = _first_eos(draft_ids, eos_token_ids)
    num_evidence = min(len(draft_ids), num_remaining_tokens - 1)
    if drafted_end is not None:
        num_evidence = min(num_evidence, drafted_end)
    num_accepted = min(len(kept) - 1, num_evidence)
    finish_reason = None
    if end is not None:
        finish_reason = FinishReason.eos
    elif len(kept) == num_remaining_tokens:
        finish_reason = FinishReason.length
    return Commit(kept, num_evidence, num_accepted, cut_reason, finish_reason)


def _first_eos(token_ids: Sequence[int], eos_token_ids: Collection[int]) -> int | None:
    return next((index for index, token_id in enumerate(token_ids) if token_id in eos_token_ids), None)
