"""late: the grammar starts with the next round. A known bug, kept as a control: its answers are not valid.

The answer tokens behind the marker stay unchecked, and the grammar begins as if they were not there, which doubles the
beginning of the answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.constraint.matcher import Matcher


class Late:
    """See the module."""

    masks_boundary_round = False
    cuts_boundary_round = False

    def take_answer(self, matcher: Matcher, answer_ids: Sequence[int]) -> int:
        return len(answer_ids)
