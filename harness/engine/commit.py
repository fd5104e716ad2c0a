"""The only place where output tokens are appended, cut and counted.

Verification emits A accepted draft tokens and one recovered or bonus token. EOS, a stop string, the length limit and
the grammar of an answer may cut the end of that. What was cut is neither accepted nor rejected evidence. What counts
must be known *before* verification, or the rates are biased: were a rejection counted where an acceptance would have
been cut, they would be too low. So

    K_r = min(K, m - 1, e, g),    A_r = min(A, K_r)

- of m tokens that may still be emitted, only the first m - 1 draft tokens can be followed by another token;
- an accepted EOS ends the request and is its last token, so a drafted EOS, at index e, and what follows it count
  neither way; the same holds for the draft token that completes the grammar, or a stop string;
- under policy `commit` the first draft token that the grammar refuses, at index g, could only be cut away, accepted or
  not; under a mask it is rejected by the constrained target, which is evidence like any rejection. So is an EOS where
  `min_tokens` lets the target emit none.

The evidence of a tree is cut by depth: a depth counts if another token may still follow it and no end of sequence was
drafted at that depth or above, on any branch, nor a token that may complete a stop string. D_r is the number of depths
that count, K_r that of the draft tokens at them, and A_r = min(A, D_r).

A kept token has the role that verification gave it: of n kept tokens the first min(n, A) are accepted draft tokens, and
only the token at index A is a recovered or bonus token. So where the grammar cut, the last kept token is a draft token
and num_accepted may reach num_output; else num_accepted <= num_output - 1. Neither way is the last round over-counted.
This module does not know tensors.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, NamedTuple

from harness.records.request import CutReason, FinishReason

if TYPE_CHECKING:
    from harness.engine.constraint.grammar_state import ConstraintOutcome
    from harness.engine.stop_strings import TextEnd


class Commit(NamedTuple):
    """What one round adds to one request."""

    token_ids: tuple[int, ...]
    num_draft_tokens: int
    num_accepted_tokens: int
    cut_reason: CutReason | None
    finish_reason: FinishReason | None
    num_cut_tokens: int = 0
    num_draft_positions: int | None = None
    """D_r of a tree; None for a chain."""


def commit(
    emitted: Sequence[int],
    draft_ids: Sequence[int],
    num_remaining_tokens: int,
    eos_token_ids: Set[int],
    outcome: ConstraintOutcome | None = None,
    depths: Sequence[int] | None = None,
    text: TextEnd | None = None,
    num_free_tokens: int = 0,
) -> Commit:
    """Cut one round's emitted tokens where the request ends and where a grammar says, and count what is evidence.

    Args:
        emitted: the accepted draft tokens, then the recovered or bonus token (1..K + 1 token ids).
        draft_ids: the K draft tokens of this round.
        num_remaining_tokens: tokens the request may still emit, at least 1.
        eos_token_ids: ids that end the request; empty to go on past them.
        outcome: of the constraint for the round; None without one.
        depths: of the draft tokens of a tree, 1 for those after the context; None for a chain.
        text: of the output so far, behind which stop strings are looked for; None without any.
        num_free_tokens: of the round, in whose places the target emits no end of sequence (min_tokens).

    Returns:
        The kept tokens, the counts before the cut, why it was cut, and whether the request is finished.
    """
    assert 1 <= len(emitted) <= len(draft_ids) + 1 and num_remaining_tokens >= 1
    num_ruled = len(emitted) if outcome is None else outcome.num_kept_tokens
    assert 1 <= num_ruled <= len(emitted)
    kept = tuple(emitted[: min(num_remaining_tokens, num_ruled)])
    end, reason = _first_end(kept, eos_token_ids, text, num_free_tokens)
    if end is not None:
        kept = kept[: end + 1]
    is_ruled = len(kept) == num_ruled
    finish_reason = None
    if end is not None:
        finish_reason = FinishReason[reason.value]
    elif is_ruled and outcome is not None and outcome.is_complete:
        finish_reason = FinishReason.grammar
    elif len(kept) == num_remaining_tokens:
        finish_reason = FinishReason.length
    cut_reason = None
    if len(kept) < len(emitted):
        cut_reason = reason if end is not None else CutReason.grammar if is_ruled else CutReason.length
    ends = eos_token_ids, text, num_free_tokens
    num_evidence, num_positions = _num_evidence(draft_ids, num_remaining_tokens, outcome, *ends), None
    if depths is not None:
        num_positions = _num_depths(draft_ids, depths, num_remaining_tokens, *ends)
        num_evidence = sum(depth <= num_positions for depth in depths)
    num_accepted = min(len(emitted) - 1, num_evidence if num_positions is None else num_positions)
    num_cut = len(emitted) - len(kept)
    return Commit(kept, num_evidence, num_accepted, cut_reason, finish_reason, num_cut, num_positions)


def stays_whole(
    token_ids: Sequence[int], num_draft_tokens: int, num_remaining_tokens: int, eos_token_ids: Set[int]
) -> bool:
    """Whether neither the length limit nor an end of sequence touches a chain's round, so that all of it counts.

    Most rounds are such, and this costs a fraction of `commit`.

    Args:
        token_ids: emitted and draft tokens of the round, among others.
        num_draft_tokens: of the round.
        num_remaining_tokens, eos_token_ids: see commit.
    """
    return num_remaining_tokens > num_draft_tokens + 1 and eos_token_ids.isdisjoint(token_ids)


def is_left_whole(outcome: ConstraintOutcome, num_accepted: int, num_draft_tokens: int) -> bool:
    """Whether a constraint keeps all of a round, counts all of its draft tokens and does not end the request."""
    is_kept = outcome.num_kept_tokens > num_accepted and outcome.num_evidence >= num_draft_tokens
    return is_kept and not outcome.is_complete


def _num_evidence(
    draft_ids: Sequence[int],
    num_remaining_tokens: int,
    outcome: ConstraintOutcome | None,
    eos_token_ids: Set[int],
    text: TextEnd | None,
    num_free_tokens: int,
) -> int:
    """K_r, from what is known before verification."""
    bound = min(len(draft_ids), num_remaining_tokens - 1)
    drafted_end, _ = _first_end(draft_ids, eos_token_ids, text, num_free_tokens)
    if drafted_end is not None:
        bound = min(bound, drafted_end)
    return bound if outcome is None else min(bound, outcome.num_evidence)


def _num_depths(
    draft_ids: Sequence[int],
    depths: Sequence[int],
    num_remaining_tokens: int,
    eos_token_ids: Set[int],
    text: TextEnd | None,
    num_free_tokens: int,
) -> int:
    """D_r of a tree, from what is known before verification."""
    found = zip(draft_ids, depths, strict=True)
    ends = [depth - 1 for token_id, depth in found if depth > num_free_tokens and token_id in eos_token_ids]
    stop = None if text is None else text.first_depth(draft_ids, depths)
    if stop is not None:
        ends.append(stop - 1)
    return min(max(depths, default=0), num_remaining_tokens - 1, *ends)


def _first_end(
    token_ids: Sequence[int], eos_token_ids: Set[int], text: TextEnd | None, num_free_tokens: int
) -> tuple[int | None, CutReason]:
    """Index of the first token with which a request ends, and by what; an end of sequence goes before a stop string."""
    eos = None
    if not eos_token_ids.isdisjoint(token_ids):
        places = range(num_free_tokens, len(token_ids))
        eos = next((index for index in places if token_ids[index] in eos_token_ids), None)
    stop = None if text is None else text.first(token_ids)
    if stop is None or (eos is not None and eos <= stop):
        return eos, CutReason.eos
    return stop, CutReason.stop
