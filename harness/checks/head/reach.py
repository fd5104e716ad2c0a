"""What a perfect drafter of a head's form could reach: one that knows the target, and has the head's vocabulary.

A drafter that is the target, restricted to its own tokens, has a chain of i tokens accepted with the probability that
the target's next i tokens are all among them: at temperature 1 by the residual rule, at 0 by the argmax. So the share
of places of the target's own text is measured at which they are, of those behind which i tokens follow.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from harness.analysis.estimates import Estimate
from harness.analysis.intervals import interval, resample_weights
from harness.checks.head.texts import Text

NUM_RESAMPLES, CONFIDENCE = 2000, 0.95


def reach(texts: Sequence[Text], draft_ids: Collection[int] | None, depth: int) -> list[Estimate]:
    """For each position the share of chains that a perfect drafter keeps up to it, resampled by prompt.

    Args:
        texts: of one temperature, one for each prompt.
        draft_ids: target ids that can be drafted; None for all.
        depth: K.
    """
    known = None if draft_ids is None else frozenset(draft_ids)
    counts = np.array([[_counts(text, known, length) for text in texts] for length in range(1, depth + 1)], dtype=float)
    weights = resample_weights(len(texts), NUM_RESAMPLES)
    found = []
    for by_text in counts:
        kept, places = by_text.T
        if not places.sum():
            found.append(Estimate(float("nan"), float("nan"), float("nan")))
            continue
        with np.errstate(divide="ignore", invalid="ignore"):
            replicates = (weights @ kept) / (weights @ places)
        found.append(Estimate(kept.sum() / places.sum(), *interval(replicates, len(texts), CONFIDENCE)))
    return found


def _counts(text: Text, known: frozenset[int] | None, length: int) -> tuple[int, int]:
    """Of the places behind which so many tokens of an answer follow: where all can be drafted, and all."""
    answer = text.token_ids[text.num_prompt_tokens + 1 :]
    places = len(answer) - length + 1
    if places <= 0:
        return 0, 0
    if known is None:
        return places, places
    fits = [token in known for token in answer]
    return sum(all(fits[place : place + length]) for place in range(places)), places
