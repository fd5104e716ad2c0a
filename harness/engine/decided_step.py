"""What a step that was read decided for the requests that go on, and its way into their rounds.

A round that nothing cuts goes from the step's row into the request's tokens. A row is taken apart where it is of a
tree, where the request may end, and where a constraint refuses something. This module does not know the clock, or what
a request that has ended leaves behind.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from harness.drafters.own_drafter import OwnDrafter
from harness.engine.constrained_step import outcomes_of
from harness.engine.decided_row import RowLayout
from harness.engine.request import Limits
from harness.engine.rounds import round_of, rounds_of
from harness.engine.sequence import Sequence
from harness.engine.settings import EngineSettings
from harness.engine.under_way import UnderWay


class DecidedStep:
    """A step that was read."""

    def __init__(
        self, step: UnderWay, rows: SequenceOf[list[int]], deciding: SequenceOf[Sequence], settings: EngineSettings
    ) -> None:
        """Let constraints see what was emitted.

        Args:
            step: that was read.
            rows: that it left, by slot (StepOutput.decided).
            deciding: the requests that it decided about and that go on.
            settings: of the engine.

        Raises:
            ValueError: a drafter of the user's own drafted a token outside the vocabulary, or fewer than none.
        """
        launched = step.launched
        self._rows, self._deciding, self._drafts = rows, deciding, step.drafts
        self._layout = layout = RowLayout.of(launched.output.draft.token_ids.shape[1], settings.drafts_trees)
        if settings.own_drafter is not None:
            self._check(settings.own_drafter)
        states = launched.grammar_states
        self._rounds = rounds_of(
            rows, layout, [item.slot for item in deciding if item.slot in states] if states else []
        )
        self._outcomes = outcomes_of(launched, self._rounds)

    def _check(self, own_drafter: OwnDrafter) -> None:
        """Look at the drafts of the user's own drafter, before any of it is committed."""
        for sequence in self._deciding:
            row = self._rows[sequence.slot]
            own_drafter.check_tokens(self._layout.draft_ids(row), sequence)
            if sequence.request.grammar_state is None:
                # else the device may have deferred the request
                _, num_drafted, _ = row[self._layout.counts]
                own_drafter.check_count(num_drafted, self._layout.width - 1, sequence)

    @property
    def is_valid(self) -> bool:
        """Whether every row had a distribution."""
        return not any(invalid for _, _, invalid in self._counts().values())

    @property
    def num_accepted(self) -> dict[int, int]:
        """Accepted draft tokens, by slot."""
        return {slot: num_accepted for slot, (num_accepted, _, _) in self._counts().items()}

    def _counts(self) -> dict[int, list[int]]:
        """What RowLayout.counts names, by slot."""
        counts = self._layout.counts
        return {item.slot: self._rows[item.slot][counts] for item in self._deciding}

    def commit(self, limits: Limits, arrival_s: float, share_s: float) -> int:
        """Commit the rounds; returns how many were invalid. For the arguments see Sequence.append_round."""
        rows, layout, outcomes, drafts = self._rows, self._layout, self._outcomes, self._drafts
        num_invalid = 0
        for sequence in self._deciding:
            slot = sequence.slot
            row, outcome = rows[slot], outcomes.get(slot)
            if layout.of_trees or not sequence.append_whole(row, layout, outcome, limits, arrival_s, share_s):
                round_ = self._rounds.get(slot) or round_of(row, layout)
                if round_.is_deferred:
                    sequence.defer(share_s)
                    continue
                sequence.append_round(round_, outcome, limits, arrival_s, share_s)
                num_invalid += round_.is_invalid
            if drafts is not None and sequence.num_proposed_tokens(-1) and (outcome is None or not outcome.is_masked):
                # measures are defined for drafts and rows without masks
                drafts.became_round(sequence, slot)
        return num_invalid
