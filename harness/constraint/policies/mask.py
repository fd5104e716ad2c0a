"""mask: positions behind a drafted marker are verified under the grammar's mask, so that nothing is cut afterwards.

Source: vLLM PR 36138 and 44297. Lossless: the target's distribution at these positions is the constrained one, whatever
the drafts were drawn from.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.constraint.matcher import Matcher


class Mask:
    """See the module."""

    masks_boundary_round = True
    cuts_boundary_round = False

    def take_answer(self, matcher: Matcher, answer_ids: Sequence[int]) -> int:
        num_taken = matcher.accept(answer_ids)
        assert num_taken == len(answer_ids) or matcher.is_complete, "a token was emitted that its mask forbids"
        return num_taken
