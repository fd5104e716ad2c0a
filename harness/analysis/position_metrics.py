"""The metrics of a draft position: how often it is accepted, and how often any lossless rule could accept it.

This module knows names and texts, no records.
"""

from __future__ import annotations

import math

from harness.analysis.metric import Metric, rate

BOUND = (
    "largest probability with which any lossless rule could accept the draft token, drawn as it was, after those that "
    "the run accepted: sum min(p, q), or p of a one-hot draft; of a tree, one of the children of the node that the run "
    "accepted before. A bound of one position: block and traversal decide about several together and may exceed it; "
    "for whole chains compare with block's expected length"
)

SHARE_OF_BOUND = rate(
    "share of the bound (%)",
    "accepted draft tokens / what was possible: the sum, over the positions that rounds came to, of the bound of that "
    "position (conditional bound at position i). A rule that decides position by position reaches 100 % at most, but "
    "for chance and for drafted end-of-sequence tokens, which count in the bound and not in acceptance: where answers "
    "are short, the share can exceed 100 % by a few percent, unless decoding.ignore_eos=true. Block and traversal "
    "decide about several positions together and may exceed it. The walks of a method itself decide which positions "
    "its share is over, so shares of two methods are not of one quantity; of chains, compare methods that decide "
    "jointly with block's expected length on the same drafts; of trees there is no such reference. A share of 100 % is "
    "no best length: the shape of the drafts decides which positions there are",
    "num_accepted_tokens",
    "bound_reached",
    high=math.inf,
)


def position_metrics(position: int) -> dict[str, Metric]:
    """The metrics of draft position 1, 2, ..; their names end in the position."""
    at = f"per_pos_{position}"
    return {
        f"acceptance_rate_{at}": rate(
            f"acceptance at position {position} (%)",
            "unconditional: rounds that accepted position i / rounds that drafted position i (K_r >= i)",
            f"num_accepted_tokens_{at}",
            f"num_draft_tokens_{at}",
        ),
        f"conditional_acceptance_rate_{at}": rate(
            f"conditional acceptance at position {position} (%)",
            "rounds that accepted position i / rounds that drafted it and accepted all positions before it",
            f"num_accepted_tokens_{at}",
            f"num_reached_{at}",
        ),
        f"acceptance_bound_{at}": rate(
            f"bound at position {position} (%)",
            f"{BOUND}; rounds that accepted the positions before, by that probability / rounds that drafted position i",
            f"bound_reached_{at}",
            f"num_draft_tokens_{at}",
        ),
        f"conditional_acceptance_bound_{at}": rate(
            f"conditional bound at position {position} (%)",
            f"{BOUND}; mean over the rounds that drafted position i and accepted all positions before it",
            f"bound_reached_{at}",
            f"num_reached_{at}",
        ),
    }
