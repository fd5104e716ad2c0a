"""The grammar starts with the round after the end of reasoning. A known bug, kept as a control: the answer tokens after
the marker stay unchecked, and the grammar begins as if they were not there, which doubles the beginning of the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.config.constraint import GrammarConfig
from harness.engine.constraint.matcher import Matcher
from kernels.methods import Guarantee


@dataclass(frozen=True)
class Late(GrammarConfig):
    """Leaves that round as it is."""

    guarantees = Guarantee.biased, Guarantee.biased

    def take_answer(self, matcher: Matcher, answer_ids: Sequence[int]) -> int:
        return len(answer_ids)
