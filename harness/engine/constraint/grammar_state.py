"""The grammar state of one request: where its reasoning ends, and how far its answer has come in the grammar.

Per round it sees the drafts (`before_verification`), says under which masks they are verified (`target_rows`), and sees
what was emitted (`after_verification`); or it sees both after verification (`try_unmasked_round`,
`after_unmasked_round`). It keeps the parser's state, the grammar and counts, never the tokens.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from harness.config.constraint import AnswerDrafts, GrammarConfig
from harness.engine.constraint.lookahead import Lookahead
from harness.engine.constraint.matcher import FREE, Matcher
from harness.engine.constraint.parsers.parser import ReasoningParser

if TYPE_CHECKING:
    from harness.engine.constraint.masks import Masks

US_PER_S = 1e6


class ConstraintOutcome(NamedTuple):
    """What a constraint decides about one round of one request, for the accounting in harness.engine.commit."""

    num_kept_tokens: int
    """Emitted tokens that may stay, at least 1."""
    num_evidence: int
    """Draft tokens that can be evidence, known before verification: those before the first that could only be cut
    away again."""
    num_free_tokens: int
    """Draft tokens up to the end of reasoning, the marker's last token included; all of them when none ends it."""
    is_complete: bool = False
    """The answer is complete and nothing can follow."""
    host_us: float = 0.0
    """Microseconds that the host spent on it."""
    is_masked: bool = False
    """Verification took place under masks."""
    ran_as_one_graph: bool = False
    """Its step ran as one captured graph, and the host read it afterwards."""


class GrammarState:
    """One request under one policy."""

    def __init__(self, parser: ReasoningParser, matcher: Matcher, policy: GrammarConfig) -> None:
        self.parser = parser
        self.matcher = matcher
        self.policy = policy
        self.masks_drafts = policy.drafts is AnswerDrafts.masked
        """Drafts of the answer are drawn under masks; else freely, and only verified under them."""
        self._state = parser.start()
        self.num_reasoning_tokens: int | None = 0 if self._state is None else None
        """Output tokens up to the end of reasoning; None while it goes on."""
        # asked in every round, and changed only where reasoning ends
        self.needs_drafts = self.in_answer or not parser.ending
        """The host must see every round's drafts before they are verified."""
        self._num_tokens = 0
        self.num_drafts_to_verify = 0
        """Drafts of this round that are worth verifying: in the answer none from a refused one on."""
        self.may_cut = False
        """Verification of this round may emit tokens that must be cut off again, while the request goes on."""
        self._num_drafts = 0
        self._num_free = 0
        self._num_evidence = 0
        self._first_mask: int | None = None
        """Of the masks that were asked for, which begin behind the free tokens."""
        self.is_masked = False
        """This round is verified under masks."""
        self._spent_s = 0.0

    @property
    def in_answer(self) -> bool:
        """Whether the end of reasoning was committed, so that everything from here on is answer."""
        return self.num_reasoning_tokens is not None

    def lookahead(self) -> Lookahead:
        """A lookahead over the drafts of a round in the answer, while they are drawn."""
        assert self.in_answer
        return Lookahead(self.matcher)

    def spend(self, seconds: float) -> None:
        """Count time of the host with this round."""
        self._spent_s += seconds

    def before_verification(self, draft_ids: Sequence[int], masks: Masks, drawn_along: Lookahead | None = None) -> None:
        """See the drafts of a round before they are verified, and ask for its masks; `target_rows` must follow.

        Args:
            draft_ids: K_r token ids.
            masks: gets the masks of this round.
            drawn_along: the lookahead along which the drafts were drawn, at its end; it is rolled back here, and their
                masks are there.
        """
        began = time.perf_counter()
        self._num_drafts = self._num_evidence = self._num_free = self.num_drafts_to_verify = len(draft_ids)
        self._first_mask, self.is_masked, self.may_cut = None, False, False
        if self.num_reasoning_tokens is not None:
            self._num_free, self.is_masked = 0, True
            if drawn_along is None:
                self._first_mask = masks.add(self.matcher, draft_ids)
            else:
                drawn_along.rollback()
                self._note_end(drawn_along.num_allowed, drawn_along.is_complete, drawn_along.is_refused)
        elif self.parser.may_end_in(draft_ids):
            self._look_across(draft_ids, masks)
        self._spent_s += time.perf_counter() - began

    def target_rows(self, masks: Masks) -> list[int]:
        """The masks of the positions of the drafts and of the one after them, FREE where there is none; empty where the
        drafts were drawn along a lookahead.

        Args:
            masks: of `before_verification`, with the masks of all requests of the step; written here if they are not.
        """
        num_free, first = self._num_free, self._first_mask
        if first is None:
            return [] if self.is_masked else [FREE] * (self._num_drafts + 1)
        num_allowed, is_complete = masks.reach(first)
        num_looked_over = self._num_drafts - num_free
        if num_allowed == num_looked_over and not (is_complete or num_free):
            return list(range(first, first + num_allowed + 1))
        is_refused = num_allowed < num_looked_over and not is_complete
        if is_complete or is_refused:
            self._note_end(num_allowed, is_complete, is_refused)
        num_masks = num_allowed + (not is_complete)
        return [FREE] * num_free + [*range(first, first + num_masks)] + [FREE] * (num_looked_over + 1 - num_masks)

    def _ends_in(self, token_ids: Sequence[int]) -> bool:
        assert self._state is not None
        parser = self.parser
        return parser.may_end_in(token_ids) and parser.end_index_in(token_ids, self._state) is not None

    def _look_across(self, draft_ids: Sequence[int], masks: Masks) -> None:
        """The round may hold the marker."""
        assert self._state is not None
        end = self.parser.end_index_in(draft_ids, self._state)
        if end is None:
            return
        self._num_free = num_free = end + 1
        self.may_cut = self.policy.cuts_boundary_round
        if self.policy.masks_boundary_round:
            self.is_masked = True
            self._first_mask = masks.add(self.matcher, draft_ids[num_free:])
        elif self.policy.cuts_boundary_round:
            lookahead = Lookahead(self.matcher)
            lookahead.look_over(draft_ids[num_free:])
            self._note_end(lookahead.num_allowed, lookahead.is_complete, lookahead.is_refused)

    def _note_end(self, num_allowed: int, is_complete: bool, is_refused: bool) -> None:
        """Bound what is verified and counted by where the grammar ends or refuses a draft token.

        The draft token that completes the grammar is the last of the request, as a drafted end of sequence would be. A
        refused one is cut under `commit`; under a mask it is rejected, which is evidence.
        """
        if is_complete:
            self._num_evidence = self._num_free + num_allowed - 1
        elif is_refused and not self.is_masked:
            self._num_evidence = self._num_free + num_allowed
        elif is_refused and self.in_answer and self.masks_drafts:
            # where no token could have been drawn that the grammar allows: what was drawn freely must be verified
            # whole, since leaving out what is refused would favour what is not
            self.num_drafts_to_verify = self._num_evidence = num_allowed

    def after_verification(self, emitted: Sequence[int]) -> ConstraintOutcome:
        """Account for what verification emitted; returns how much of it stays."""
        began = time.perf_counter()
        num_kept = self._take(emitted)
        self._num_tokens += num_kept
        is_complete = self.num_reasoning_tokens is not None and self.matcher.is_complete
        host_us = (self._spent_s + time.perf_counter() - began) * US_PER_S
        self._spent_s = 0.0
        return ConstraintOutcome(num_kept, self._num_evidence, self._num_free, is_complete, host_us, self.is_masked)

    def try_unmasked_round(self, draft_ids: Sequence[int], emitted: Sequence[int]) -> bool:
        """Account for a round that was verified before the host saw its drafts, if reasoning cannot end in it.

        Nearly every round before the end of reasoning is one.

        Returns:
            Whether it was accounted for, all of it to stay; if not, `after_unmasked_round` must do so.
        """
        parser = self.parser
        if self.needs_drafts or parser.may_end_in(draft_ids) or parser.may_end_in(emitted):
            return False
        assert self._state is not None
        self._state = parser.after(emitted, self._state)
        self._num_tokens += len(emitted)
        return True

    def after_unmasked_round(self, draft_ids: Sequence[int], emitted: Sequence[int]) -> ConstraintOutcome:
        """Account for a round that was verified before the host saw its drafts; returns how much of it stays.

        The parser's `ending` is neither in the drafts nor before them: there was nothing to mask or cut.

        Raises:
            ValueError: there was: reasoning ends where `ending` does not stand.
        """
        began = time.perf_counter()
        if self.in_answer or self._ends_in(draft_ids):
            raise ValueError(
                f"{type(self.parser).__name__}.ending: expected tokens that every end of reasoning ends with, found an "
                f"end without {self.parser.ending}; correct it, or leave it empty"
            )
        num_drafts = len(draft_ids)
        num_kept = self._take(emitted)
        self._num_tokens += num_kept
        is_complete = self.in_answer and self.matcher.is_complete
        host_us = (time.perf_counter() - began) * US_PER_S
        return ConstraintOutcome(num_kept, num_drafts, num_drafts, is_complete, host_us, ran_as_one_graph=True)

    def _take(self, emitted: Sequence[int]) -> int:
        """Advance over the emitted tokens that stay; returns how many they are."""
        if self.num_reasoning_tokens is not None:
            num_kept = self.matcher.accept(emitted)
            assert num_kept == len(emitted) or self.matcher.is_complete, "a token was emitted that its mask forbids"
            return num_kept
        assert self._state is not None
        end = self.parser.end_index_in(emitted, self._state) if self.parser.may_end_in(emitted) else None
        if end is None:
            self._state = self.parser.after(emitted, self._state)
            return len(emitted)
        self.num_reasoning_tokens, self.needs_drafts = self._num_tokens + end + 1, True
        return end + 1 + self.policy.take_answer(self.matcher, emitted[end + 1 :])
