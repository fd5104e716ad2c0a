"""A part of what a cell answered, such as the prompts of one category, with the metrics of it alone."""

from __future__ import annotations

from typing import NamedTuple

from harness.analysis.estimates import NOT_AVAILABLE, Estimate, Estimates, paired_ratio


class PromptPart(NamedTuple):
    """The part."""

    label: str
    """What tells it from the others."""
    num_counted: int
    """Prompts or drafts in it, whichever the parts are made of."""
    num_drafts: float
    """nan where drafts are known of the whole cell alone."""
    estimates: Estimates


def speedup_over(baseline: PromptPart | None, part: PromptPart) -> Estimate:
    """Output throughput of a part over that of the same part of its baseline, on the same prompts."""
    if baseline is None:
        return NOT_AVAILABLE
    return paired_ratio(baseline.estimates, part.estimates, "output_tokens_per_s")
