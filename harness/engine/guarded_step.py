"""A step in which the host takes part: between drafts and verification, and between verification and what follows it.

    drafts (under masks, for requests behind their boundary) -> host: masks of the target's rows -> verification
    -> host: what may stay -> the drafter and the slots take it in

It does not know limits, records or time; what stays is decided in harness.constraint, and counted in commit.py.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import torch

from harness.constraint.guard import US_PER_S, Guard
from harness.constraint.masks import FREE, Masks
from harness.constraint.ruling import Ruling
from harness.engine.cut_verdict import cut_verdict
from harness.engine.draft_masks import GuardedDrafts
from harness.engine.plan import Plan
from harness.engine.runner import Launched
from harness.engine.sequence import Round, rounds_of
from harness.engine.slots import StepInputs
from harness.engine.step import Drafted, Scored, Step
from kernels.contract import TokenMask

CUT_TOO_LATE = "something is cut that the device has taken in"


class GuardedStep:
    """The steps of one engine whose requests may have guards."""

    def __init__(self, step: Step, num_slots: int) -> None:
        self.step = step
        device = step.target.device
        most = num_slots * (step.num_speculative_tokens + 1)
        self.masks = Masks(most, step.target.vocab_size, is_pinned=device.type == "cuda")

    def run(self, plan: Plan, inputs: StepInputs) -> Launched:
        """Run a step from its drafts to its end, the host at every turn."""
        step, guards, drafting = self.step, guards_of(plan), drafting_slots(plan)
        behind = {slot: guards[slot] for slot in drafting if guards[slot].is_behind}
        num_rows, num_tokens = inputs.decides.numel(), step.num_speculative_tokens
        self.masks.clear()
        masked = GuardedDrafts(behind, self.masks, num_rows, num_tokens, step.target.device) if behind else None
        drafted = step.draft(inputs, masked)
        scored = step.score(inputs, drafted)
        counts, token_ids = drafted.draft.num_draft_tokens.tolist(), drafted.draft.token_ids.tolist()
        rows = self.look_ahead(guards, drafting, counts, token_ids, masked)
        return self.verify(inputs, drafted, scored, guards, counts, rows)

    def look_ahead(
        self,
        guards: Mapping[int, Guard],
        drafting: Collection[int],
        counts: list[int],
        token_ids: Sequence[Sequence[int]],
        masked: GuardedDrafts | None = None,
    ) -> list[list[int]]:
        """Show the drafts to the guards.

        Args:
            guards: by slot.
            drafting: slots that decode; the others have no drafts.
            counts: [B] draft tokens of each slot; those that are not worth verifying are taken off.
            token_ids: [B][K] drafts.
            masked: the masks that they were drawn under.

        Returns:
            [B][T] masks of the target rows.
        """
        width = self.step.num_speculative_tokens + 1
        rows = [[FREE] * width for _ in counts]
        for slot, guard in guards.items():
            num_drafts = counts[slot] if slot in drafting else 0
            # a drafter that looks its tokens up has drawn nothing under the masks
            in_front = masked.target_rows.get(slot, []) if masked is not None else []
            walked = masked.walks[slot] if masked is not None and in_front else None
            found = in_front + guard.look_ahead(token_ids[slot][:num_drafts], self.masks, walked)
            rows[slot][: len(found)] = found
            if slot in drafting:
                counts[slot] = guard.num_worthwhile
        return rows

    def verify(
        self,
        inputs: StepInputs,
        drafted: Drafted,
        scored: Scored,
        guards: Mapping[int, Guard],
        counts: Sequence[int],
        rows: Sequence[Sequence[int]],
    ) -> Launched:
        """The rest of a step, of whose drafts `counts` are verified under the masks `rows`."""
        step, device, mask = self.step, self.step.target.device, None
        fewer = replace(drafted.draft, num_draft_tokens=torch.tensor(counts, device=device))
        if self.masks.num_masks:
            flat = torch.tensor([row for each in rows for row in each], device=device)
            mask = TokenMask(self.masks.words.to(device), flat)
        verified = step.verify(inputs, drafted._replace(draft=fewer), scored, mask)
        decided = step.decided(verified).cpu()
        rulings, cuts = settle(guards, rounds_of(decided.tolist(), step.num_speculative_tokens, guards))
        if cuts:
            num_kept = [cuts.get(slot, step.num_speculative_tokens + 1) for slot in range(len(decided))]
            verified = cut_verdict(verified, torch.tensor(num_kept, device=device))
        step.extend(inputs, scored, verified)
        return Launched(step.commit(scored, verified), decided, None, rulings)


def settle(guards: Mapping[int, Guard], rounds: Mapping[int, Round]) -> tuple[dict[int, Ruling], dict[int, int]]:
    """What the guards say of the tokens that a step emitted, by slot, and how many stay where not all do.

    Args:
        guards: by slot; they have seen the drafts.
        rounds: by slot.
    """
    rulings, cuts = {}, {}
    for slot, guard in guards.items():
        emitted = rounds[slot].emitted
        rulings[slot] = ruling = guard.settle(emitted)
        if ruling.num_kept_tokens < len(emitted):
            cuts[slot] = ruling.num_kept_tokens
    return rulings, cuts


def settle_whole(guards: Mapping[int, Guard], rounds: Mapping[int, Round]) -> dict[int, Ruling]:
    """What guards that have not seen the drafts say of a step, by slot; arguments as of `settle`.

    While the next step is on its way and nobody's reasoning ends, this is what a grammar costs: the guards share one
    measurement of the time, and rounds with the same counts a ruling.
    """
    began = time.perf_counter()
    free = [
        slot for slot, guard in guards.items() if guard.take_free_round(rounds[slot].draft_ids, rounds[slot].emitted)
    ]
    host_us = (time.perf_counter() - began) * US_PER_S / max(len(guards), 1)
    alike: dict[tuple[int, int], Ruling] = {}
    rulings = {}
    for slot in free:
        counts = len(rounds[slot].emitted), len(rounds[slot].draft_ids)
        if counts not in alike:
            num_kept, num_drafts = counts
            alike[counts] = Ruling(num_kept, num_drafts, num_drafts, host_us=host_us, is_whole=True)
        rulings[slot] = alike[counts]
    for slot in guards.keys() - rulings.keys():
        emitted = rounds[slot].emitted
        ruling = guards[slot].settle_whole(rounds[slot].draft_ids, emitted)
        assert ruling.is_complete or ruling.num_kept_tokens == len(emitted), CUT_TOO_LATE
        rulings[slot] = ruling._replace(host_us=ruling.host_us + host_us)
    return rulings


def guards_of(plan: Plan) -> dict[int, Guard]:
    """The guards of the requests that a step decides about, by slot; of those that have ended none."""
    going_on = [item for item in plan.deciding if item.finish_reason is None]
    return {item.slot: item.request.guard for item in going_on if item.request.guard is not None}


def drafting_slots(plan: Plan) -> set[int]:
    """Slots that decode, and whose requests have guards."""
    return {item.slot for item in plan.decoding if item.request.guard is not None and item.finish_reason is None}
