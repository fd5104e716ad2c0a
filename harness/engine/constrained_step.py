"""A step in which the host takes part: between drafts and verification, and between verification and what follows it.

    drafts (under masks, for requests in their answer) -> host: masks of the target's rows -> verification
    -> host: what may stay -> the drafter and the slots take it in

It does not know limits, records or time; what stays is decided in harness.engine.constraint, and counted in commit.py.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import replace

import torch
from torch import Tensor

from harness.engine.constrained_drafts import ConstrainedDrafts, share_s
from harness.engine.constraint.grammar_state import US_PER_S, ConstraintOutcome, GrammarState
from harness.engine.constraint.masks import Masks
from harness.engine.constraint.matcher import FREE
from harness.engine.decided_row import RowLayout
from harness.engine.rounds import Round, rounds_of
from harness.engine.runner import EagerRunner, Launched
from harness.engine.sequence import Sequence
from harness.engine.slots import StepInputs
from harness.engine.step import Drafted, Scored, Step, Verified
from harness.engine.step_plan import StepPlan
from kernels.contract import TokenMask

CUT_TOO_LATE = "something is cut that the device has taken in"


class ConstrainedStep:
    """The steps of one engine whose requests may have grammar states."""

    def __init__(self, step: Step, num_slots: int) -> None:
        self.step = step
        device = step.target.device
        most = num_slots * (step.num_speculative_tokens + 1)
        num_rows = most + num_slots * step.num_speculative_tokens
        self.masks = Masks(most, step.target.vocab_size, device.type == "cuda", num_rows)

    def run(self, plan: StepPlan, inputs: StepInputs) -> Launched:
        """Run a step from its drafts to its end, the host at every turn."""
        step, grammar_states, drafting = self.step, grammar_states_of(plan), drafting_slots(plan)
        in_answer = masking_drafts(plan) if step.num_speculative_tokens else {}
        self.masks.clear()
        masked = self.masked_drafts(in_answer, inputs) if in_answer else None
        drafted = step.draft(inputs, masked)
        scored = step.score(inputs, drafted)
        counts, token_ids = drafted.draft.num_draft_tokens.tolist(), drafted.draft.token_ids.tolist()
        rows = self.before_verification(grammar_states, drafting, counts, token_ids, masked)
        return self.verify(inputs, drafted, scored, grammar_states, counts, rows)

    def masked_drafts(self, in_answer: Mapping[int, GrammarState], inputs: StepInputs) -> ConstrainedDrafts:
        """The masks of a step's drafts; the grammar states, by slot, are all in the answer."""
        num_rows, num_tokens = inputs.decides.numel(), self.step.num_speculative_tokens
        return ConstrainedDrafts(in_answer, self.masks, num_rows, num_tokens, self.step.target.device)

    def before_verification(
        self,
        grammar_states: Mapping[int, GrammarState],
        drafting: Mapping[int, Sequence],
        counts: list[int],
        token_ids: SequenceOf[SequenceOf[int]],
        masked: ConstrainedDrafts | None = None,
    ) -> list[int]:
        """Show the drafts to the grammar states.

        Args:
            grammar_states: by slot.
            drafting: the requests that decode, by slot; the others have no drafts.
            counts: [B] draft tokens of each slot; those that are not worth verifying are taken off.
            token_ids: [B][K] drafts.
            masked: the masks that they were drawn under.

        Returns:
            [B * T] masks of the target rows.

        Raises:
            ValueError: a drafter of the user's own drafted a token outside the vocabulary.
        """
        if masked is not None:
            masked.end()
        masks, in_front = self.masks, {} if masked is None else masked.target_rows
        for slot, grammar_state in grammar_states.items():
            draft_ids = token_ids[slot][: counts[slot]] if slot in drafting else ()
            if self.step.own_drafter is not None and slot in drafting:
                self.step.own_drafter.check_tokens(draft_ids, drafting[slot])
            # a drafter that looks its tokens up has drawn nothing under the masks
            drawn_along = masked.lookaheads[slot] if masked is not None and in_front.get(slot) else None
            grammar_state.before_verification(draft_ids, masks, drawn_along)
        began = time.perf_counter()
        masks.write()
        width = len(token_ids[0]) + 1
        rows = [FREE] * (len(token_ids) * width)
        for slot, grammar_state in grammar_states.items():
            found = in_front.get(slot, []) + grammar_state.target_rows(masks)
            rows[slot * width : slot * width + len(found)] = found
            if slot in drafting:
                counts[slot] = grammar_state.num_drafts_to_verify
        share_s(began, [each for each in grammar_states.values() if each.is_masked])
        return rows

    def verify(
        self,
        inputs: StepInputs,
        drafted: Drafted,
        scored: Scored,
        grammar_states: Mapping[int, GrammarState],
        counts: SequenceOf[int],
        rows: SequenceOf[int],
    ) -> Launched:
        """The rest of a step, of whose drafts `counts` are verified under the masks `rows`."""
        step, device, mask = self.step, self.step.target.device, None
        fewer = replace(drafted.draft, num_draft_tokens=torch.tensor(counts, device=device))
        if self.masks.num_masks:
            mask = TokenMask(self.masks.words.to(device), torch.tensor(rows, device=device))
        verified = step.verify(inputs, drafted._replace(draft=fewer), scored, mask)
        decided = step.decided(verified).cpu()
        outcomes, num_kept = cut_rounds(grammar_states, decided.tolist(), drafted.draft.token_ids.shape[1])
        if num_kept is not None:
            verified = truncate_verdict(verified, torch.tensor(num_kept, device=device))
        step.extend(inputs, scored, verified)
        return Launched(step.commit(scored, verified), decided, None, outcomes)


class ConstrainedRunner(EagerRunner):
    """Launches steps whose requests may have grammar states, operation by operation; each ends before the next one is
    planned."""

    def __init__(self, step: Step, num_slots: int) -> None:
        super().__init__(step)
        self._constrained = ConstrainedStep(step, num_slots)

    def launch(self, plan: StepPlan) -> Launched:
        return self._constrained.run(plan, self.inputs(plan))


def truncate_verdict(
    verified: Verified,
    # [B] int64
    num_kept: Tensor,
) -> Verified:
    """Leave the first tokens of each row, at least 1, of a row that has any.

    The last one takes the place of a recovered token, accepted draft token though it may be: the target has read
    everything before it, and it is the first that the next round reads. Counting is not this function's work.
    """
    verdict = verified.verdict
    columns = torch.arange(verdict.token_ids.shape[1], device=num_kept.device)
    token_ids = verdict.token_ids.masked_fill(columns >= num_kept.unsqueeze(1), -1)
    num_accepted = torch.minimum(verdict.num_accepted, num_kept - 1)
    return verified._replace(verdict=replace(verdict, token_ids=token_ids, num_accepted=num_accepted))


def cut_rounds(
    grammar_states: Mapping[int, GrammarState], decided: SequenceOf[list[int]], num_tokens: int
) -> tuple[dict[int, ConstraintOutcome], list[int] | None]:
    """The outcomes of a step that the device has not taken in, by slot, and the tokens that stay of each row.

    None where all do. `decided` as in StepOutput; `num_tokens` are the K of the step.
    """
    outcomes, cuts = apply_constraints(grammar_states, rounds_of(decided, RowLayout.of(num_tokens), grammar_states))
    return outcomes, [cuts.get(slot, num_tokens + 1) for slot in range(len(decided))] if cuts else None


def apply_constraints(
    grammar_states: Mapping[int, GrammarState], rounds: Mapping[int, Round]
) -> tuple[dict[int, ConstraintOutcome], dict[int, int]]:
    """The outcome of the tokens that a step emitted, by slot, and how many stay where not all do.

    Args:
        grammar_states: by slot; they have seen the drafts.
        rounds: by slot.
    """
    outcomes, cuts = {}, {}
    for slot, grammar_state in grammar_states.items():
        emitted = rounds[slot].emitted
        outcomes[slot] = outcome = grammar_state.after_verification(emitted)
        if outcome.num_kept_tokens < len(emitted):
            cuts[slot] = outcome.num_kept_tokens
    return outcomes, cuts


def after_unmasked_round(
    grammar_states: Mapping[int, GrammarState], rounds: Mapping[int, Round]
) -> dict[int, ConstraintOutcome]:
    """Outcomes by slot of a step whose drafts the host has not seen; arguments as of `apply_constraints`.

    This is all that a grammar costs while no reasoning ends and the next step is under way. Grammar states share one
    measurement of the time; rounds with the same counts share an outcome.
    """
    began = time.perf_counter()
    free = [
        slot
        for slot, grammar_state in grammar_states.items()
        if grammar_state.try_unmasked_round(rounds[slot].draft_ids, rounds[slot].emitted)
    ]
    host_us = (time.perf_counter() - began) * US_PER_S / max(len(grammar_states), 1)
    alike: dict[tuple[int, int], ConstraintOutcome] = {}
    outcomes = {}
    for slot in free:
        counts = len(rounds[slot].emitted), len(rounds[slot].draft_ids)
        if counts not in alike:
            num_kept, num_drafts = counts
            alike[counts] = ConstraintOutcome(num_kept, num_drafts, num_drafts, host_us=host_us, ran_as_one_graph=True)
        outcomes[slot] = alike[counts]
    for slot in grammar_states.keys() - outcomes.keys():
        emitted = rounds[slot].emitted
        outcome = grammar_states[slot].after_unmasked_round(rounds[slot].draft_ids, emitted)
        assert outcome.is_complete or outcome.num_kept_tokens == len(emitted), CUT_TOO_LATE
        outcomes[slot] = outcome._replace(host_us=outcome.host_us + host_us)
    return outcomes


def grammar_states_of(plan: StepPlan) -> dict[int, GrammarState]:
    """The grammar states of the requests that a step decides about, by slot; of those that have ended none."""
    going_on = [item for item in plan.deciding if item.finish_reason is None]
    return {item.slot: item.request.grammar_state for item in going_on if item.request.grammar_state is not None}


def drafting_slots(plan: StepPlan) -> dict[int, Sequence]:
    """The requests that decode and have grammar states, by slot."""
    return {
        item.slot: item
        for item in plan.decoding
        if item.request.grammar_state is not None and item.finish_reason is None
    }


def masking_drafts(plan: StepPlan) -> dict[int, GrammarState]:
    """The grammar states, by slot, of the answers whose drafts are drawn under masks."""
    found = [(item.slot, item.request.grammar_state) for item in plan.decoding if item.finish_reason is None]
    return {slot: each for slot, each in found if each is not None and each.masks_drafts and each.in_answer}


def outcomes_of(launched: Launched, rounds: Mapping[int, Round]) -> Mapping[int, ConstraintOutcome]:
    """Outcomes of the constraints of a step that was read, by slot."""
    if not launched.grammar_states:
        return launched.outcomes
    decided = [slot for slot, item in rounds.items() if not item.is_deferred]
    grammar_states = {slot: launched.grammar_states[slot] for slot in decided if slot in launched.grammar_states}
    if launched.ran_as_one_graph:
        return after_unmasked_round(grammar_states, rounds)
    outcomes, cuts = apply_constraints(grammar_states, rounds)
    assert all(outcomes[slot].is_complete for slot in cuts), CUT_TOO_LATE
    return outcomes
