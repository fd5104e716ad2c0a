"""What a constraint says of one round of one request, for the accounting in harness.engine.commit."""

from __future__ import annotations

from typing import NamedTuple


class ConstraintOutcome(NamedTuple):
    """One round."""

    num_kept_tokens: int
    """Emitted tokens that may stay, at least 1."""
    num_evidence: int
    """Draft tokens that can be evidence, known before verification: those in front of the first that could only be cut
    away again."""
    num_free_tokens: int
    """Draft tokens up to the end of reasoning, the marker's last token included; all of them when none ends it."""
    is_complete: bool = False
    """The answer is whole and nothing can follow."""
    host_us: float = 0.0
    """Microseconds that the host spent on it."""
    is_masked: bool = False
    """Verification took place under masks."""
    ran_as_one_graph: bool = False
    """Its step ran as one piece, and the host looked at it afterwards."""
