"""Steps in which the host takes part: between drafts and verification, and between verification and what follows it.

    drafts (under masks, for requests behind their boundary) -> host: masks of the target's rows -> verification
    -> host: what may stay -> the drafter and the slots take it in

It does not know limits, records or time; what stays is decided in harness.constraint, and counted in commit.py.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from harness.constraint.guard import Guard
from harness.constraint.masks import FREE, Masks
from harness.constraint.ruling import Ruling
from harness.engine.cut_verdict import cut_verdict
from harness.engine.draft_masks import GuardedDrafts
from harness.engine.inputs import in_pieces
from harness.engine.plan import Plan
from harness.engine.runner import EagerRunner, Launched
from harness.engine.sequence import rounds_of
from harness.engine.step import Drafted, Step
from kernels.contract import TokenMask


class ConstrainedRunner:
    """Launches the steps of one engine whose requests may have guards, operation by operation."""

    row_width = 0
    most_prompt_tokens = EagerRunner.most_prompt_tokens

    def __init__(self, step: Step, num_slots: int) -> None:
        assert not step.joins
        self.step = step
        device = step.target.device
        most = num_slots * (step.num_speculative_tokens + 1)
        self._masks = Masks(most, step.target.vocab_size, is_pinned=device.type == "cuda")

    def prepare(self) -> None:
        """Nothing is needed."""

    def launch(self, plan: Plan) -> Launched:
        step = self.step
        inputs = in_pieces(plan, step.num_speculative_tokens, self.most_prompt_tokens, step.target.device)
        guards = {item.slot: item.request.guard for item in plan.deciding if item.request.guard is not None}
        drafting = [item.slot for item in plan.decoding if item.slot in guards]
        self._masks.clear()
        masked = self._guarded_drafts({slot: guards[slot] for slot in drafting if guards[slot].is_behind}, plan)
        drafted = step.draft(inputs, masked)
        scored = step.score(inputs, drafted)
        drafted, mask = self._look_ahead(guards, drafting, drafted, masked)
        verified = step.verify(inputs, drafted, scored, mask)
        rows = step.decided(verified).cpu()
        rulings, cuts = self._settle(guards, rows.tolist())
        if cuts:
            num_kept = [cuts.get(slot, self.step.num_speculative_tokens + 1) for slot in range(len(rows))]
            verified = cut_verdict(verified, torch.tensor(num_kept, device=step.target.device))
        step.extend(inputs, scored, verified)
        return Launched(step.commit(scored, verified), rows, None, rulings)

    def _guarded_drafts(self, behind: dict[int, Guard], plan: Plan) -> GuardedDrafts | None:
        if not behind:
            return None
        step = self.step
        return GuardedDrafts(behind, self._masks, plan.num_slots, step.num_speculative_tokens, step.target.device)

    def _look_ahead(
        self, guards: dict[int, Guard], drafting: list[int], drafted: Drafted, masked: GuardedDrafts | None
    ) -> tuple[Drafted, TokenMask | None]:
        """Show the drafts to the guards; gives the drafts that are worth verifying and the masks of the target rows."""
        draft = drafted.draft
        counts, token_ids = draft.num_draft_tokens.tolist(), draft.token_ids.tolist()
        rows = torch.full((len(counts), self.step.num_speculative_tokens + 1), FREE, dtype=torch.int64)
        num_worthwhile = list(counts)
        for slot, guard in guards.items():
            num_drafts = counts[slot] if slot in drafting else 0
            # a drafter that looks its tokens up has drawn nothing under the masks
            in_front = masked.target_rows.get(slot, []) if masked is not None else []
            walked = masked.walks[slot] if masked is not None and in_front else None
            found = in_front + guard.look_ahead(token_ids[slot][:num_drafts], self._masks, walked)
            rows[slot, : len(found)] = torch.tensor(found)
            num_worthwhile[slot] = guard.num_worthwhile
        device = draft.token_ids.device
        if num_worthwhile != counts:
            fewer = replace(draft, num_draft_tokens=torch.tensor(num_worthwhile, device=device))
            drafted = drafted._replace(draft=fewer)
        if self._masks.num_masks == 0:
            return drafted, None
        return drafted, TokenMask(self._masks.words.to(device), rows.flatten().to(device))

    def _settle(self, guards: dict[int, Guard], rows: list[list[int]]) -> tuple[dict[int, Ruling], dict[int, int]]:
        """What the guards say of the tokens that verification emitted, and how many stay where not all do."""
        slots = list(guards)
        rulings, cuts = {}, {}
        for slot, round_ in zip(slots, rounds_of(rows, self.step.num_speculative_tokens, slots), strict=True):
            ruling = rulings[slot] = guards[slot].settle(round_.emitted)
            if ruling.num_kept_tokens < len(round_.emitted):
                cuts[slot] = ruling.num_kept_tokens
        return rulings, cuts
