"""What a file of acceptance terms may hold: its columns with their meaning. This module knows no files."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernels.tree.multi_drafts import MULTI_DRAFT_TERMS


@dataclass(frozen=True)
class TermColumn:
    """One recorded number."""

    definition: str
    """p is the target's and q the draft's processed distribution at the position, X the draft token."""
    low: float = 0.0
    high: float = 1.0
    is_of_draft: bool = False
    """One number for a whole draft instead of one for each of its positions."""
    is_required: bool = True
    """Every file has it."""


COLUMNS: dict[str, TermColumn] = {
    "target_prob": TermColumn("p_i(X_i)"),
    "draft_prob": TermColumn("q_i(X_i); 1 with one-hot proposals; 0 for a token that its draft cannot have produced"),
    "overlap": TermColumn("sum_x min(p_i(x), q_i(x)): probabilistic verification accepts, before X_i is drawn"),
    "strict_mass": TermColumn("sum_x p_i(x) q_i(x): strict verification accepts, before X_i is drawn"),
    "coupled_mass": TermColumn("sum_x 1 / sum_y max(p_i(y) / p_i(x), q_i(y) / q_i(x)): coupled verification accepts"),
    "coupled_prob": TermColumn("p_i(X) / sum_y max(p_i(y) q_i(X), q_i(y) p_i(X)), X = X_i: the same, given X_i"),
    "block_threshold": TermColumn("h_i of block verification"),
    "block_overlap": TermColumn(
        "sum_x min(P_{i-1} p_i(x), q_i(x)), P_i = min(1, P_{i-1} p_i(X_i) / q_i(X_i)), P_0 = 1"
    ),
    "target_entropy": TermColumn("entropy of p_i in nats", high=np.inf),
    "output_tv": TermColumn(
        "total variation between the law of the round's first token, given its context, and p_1 "
        "(kernels/reference/output_tv.py); of fly an unbiased estimate; not for pr35461, nor block of several and fly "
        "of any unrounded drafts, which have no closed form",
        is_of_draft=True,
        is_required=False,
    ),
    "draft_tv": TermColumn(
        "total variation between the distribution that the first draft token was drawn from and the one in the cache, "
        "of drafts that are drawn unrounded (kernels/reference/output_tv.py)",
        is_of_draft=True,
        is_required=False,
    ),
    **{
        name: TermColumn(f"{rule.definition} (kernels/tree/multi_drafts.py)", is_required=False)
        for name, rule in MULTI_DRAFT_TERMS.items()
    },
}
"""What a file may hold. All float64: a replay repeats the record's expected acceptance to rounding."""
