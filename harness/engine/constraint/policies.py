"""What is done about the answer tokens of the round in which reasoning ends.

In later rounds every policy verifies under masks. Only that round is open: its drafts were proposed while the
grammar was off.

late     The grammar starts with the next round. A known bug, kept as a control: the answer tokens after the marker stay
         unchecked, and the grammar begins as if they were not there, which doubles the beginning of the answer.
commit   What was emitted after the marker is checked when it is committed, and cut at the first refused token.
         Source: vLLM PR 40962. Lossless: the token in the place of a refused one is drawn in the next round, under the
         mask, and

             p(x) [x allowed] + P(refused) p(x) [x allowed] / P(allowed)  =  p(x) [x allowed] / P(allowed)

         which needs that p is cut by nothing else: top-k, top-p and min-p choose from all tokens before a refusal and
         from the allowed ones after it.
mask     Positions after a drafted marker are verified under the grammar's mask, so that nothing is cut afterwards.
         Source: vLLM PR 36138 and 44297. Lossless: the target's distribution at these positions is the constrained one,
         whatever the drafts were drawn from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.config.constraint import PolicyKind
from harness.engine.constraint.matcher import Matcher


@dataclass(frozen=True)
class Policy:
    """One of the policies above."""

    masks_boundary_round: bool
    """Whether positions after a drafted marker are verified under masks."""
    cuts_boundary_round: bool
    """Whether answer tokens that the grammar refuses are cut off again."""

    def take_answer(self, matcher: Matcher, answer_ids: Sequence[int]) -> int:
        """Advance over the answer tokens of the round in which reasoning ended.

        Args:
            matcher: at the start of the grammar; is advanced by what stays.
            answer_ids: what verification emitted after the marker.

        Returns:
            How many of them stay.
        """
        if not (self.masks_boundary_round or self.cuts_boundary_round):
            return len(answer_ids)
        num_taken = matcher.accept(answer_ids)
        is_cut = num_taken < len(answer_ids) and not matcher.is_complete
        assert self.cuts_boundary_round or not is_cut, "a token was emitted that its mask forbids"
        return num_taken


POLICIES = {
    PolicyKind.late: Policy(masks_boundary_round=False, cuts_boundary_round=False),
    PolicyKind.commit: Policy(masks_boundary_round=False, cuts_boundary_round=True),
    PolicyKind.mask: Policy(masks_boundary_round=True, cuts_boundary_round=False),
}
"""The policies that constrain an answer by a grammar; `none` only validates it afterwards."""
