"""What a policy decides. In later rounds all of them verify under masks and propose under them.

Only the round in which reasoning ends is open: its drafts were proposed while the grammar was off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from harness.constraint.matcher import Matcher


class Policy(Protocol):
    """See the files beside this one."""

    @property
    def masks_boundary_round(self) -> bool:
        """Whether positions behind a drafted marker are verified under masks."""
        ...

    @property
    def cuts_boundary_round(self) -> bool:
        """Whether answer tokens that the grammar refuses are cut off again."""
        ...

    def take_answer(self, matcher: Matcher, answer_ids: Sequence[int]) -> int:
        """Take in the answer tokens of the round in which reasoning ended.

        Args:
            matcher: at the start of the grammar; is advanced by what stays.
            answer_ids: what verification emitted behind the marker.

        Returns:
            How many of them stay.
        """
        ...
