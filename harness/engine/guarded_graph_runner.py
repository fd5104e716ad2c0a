"""Steps whose requests may have guards, in parts that are CUDA graphs.

While nobody is behind the boundary, the host looks at the drafts when the target's forward is still running, and
launches the rest behind it: the drafts are copied beside the forward. So the device does not wait, and the next step
can be launched ahead. Behind the boundary the drafts are drawn operation by operation, under masks that the host makes
one after the other; everything else are graphs all the same, but for the rare step of which something may be cut.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.constraint.guard import Guard
from harness.engine.draft_masks import GuardedDrafts
from harness.engine.graph_runner import GraphRunner, StepSize, _Captured
from harness.engine.guarded_step import GuardedStep, drafting_slots, guards_of
from harness.engine.plan import Plan
from harness.engine.prompt_limit import PromptLimit
from harness.engine.runner import Begun, Launched, fetch
from harness.engine.step import Step
from harness.engine.step_parts import CapturedParts, StepParts
from kernels.contract import Draft


class GuardedGraphRunner(GraphRunner):
    """Launches drafts and forward of a step; `Begun.finish` does the rest."""

    def __init__(self, step: Step, num_slots: int, prompt_limit: PromptLimit | None = None) -> None:
        super().__init__(step, num_slots, prompt_limit)
        self._guarded = GuardedStep(step, num_slots)
        self._most_masks = num_slots * self.row_width
        self._parts: dict[StepSize, StepParts] = {}
        is_cuda = step.target.device.type == "cuda"
        self._beside = torch.cuda.Stream(step.target.device) if is_cuda else None

    def launch(self, plan: Plan) -> Launched | Begun:
        self._take_in(plan)
        parts = self._parts[self._size(plan)]
        guards = guards_of(plan)
        parts.draft()
        if any(guard.is_behind for guard in guards.values()):
            return self._run_behind(plan, parts, guards)
        shown = self._show(parts.drafted.draft)
        parts.score()
        return Begun(lambda: self._finish(plan, parts, shown))

    def _finish(self, plan: Plan, parts: StepParts, shown: _Shown) -> Launched:
        """Look at the drafts, and launch what follows them."""
        # requests that ended in the step before are still in the plan, and nobody asks about them
        guards, drafting = guards_of(plan), drafting_slots(plan)
        drafts, counts = shown.read()
        worthwhile = list(counts)
        self._guarded.masks.clear()
        rows = self._guarded.look_ahead(guards, drafting, worthwhile, drafts)
        return self._end(parts, guards, rows, worthwhile if worthwhile != counts else None, None)

    def _run_behind(self, plan: Plan, parts: StepParts, guards: dict[int, Guard]) -> Launched:
        """A step that somebody behind the boundary takes part in, from its drafts to its end."""
        step, masks, drafting = self.step, self._guarded.masks, drafting_slots(plan)
        behind = {slot: guards[slot] for slot in drafting if guards[slot].is_behind}
        masks.clear()
        num_rows = parts.given.decides.numel()
        masked = GuardedDrafts(behind, masks, num_rows, step.num_speculative_tokens, step.target.device)
        draft = step.draft(parts.given, masked if behind else None).draft
        drafts, counts = draft.token_ids.tolist(), draft.num_draft_tokens.tolist()
        parts.write(draft.token_ids, counts)
        parts.score()
        worthwhile = list(counts)
        rows = self._guarded.look_ahead(guards, drafting, worthwhile, drafts, masked if behind else None)
        return self._end(parts, guards, rows, worthwhile if worthwhile != counts else None, masked.rows)

    def _end(
        self,
        parts: StepParts,
        guards: dict[int, Guard],
        rows: list[list[int]],
        counts: list[int] | None,
        draft_rows: Tensor | None,
    ) -> Launched:
        """The rest of a step; `counts` are other counts of drafts than it has, `draft_rows` their masks."""
        words = self._guarded.masks.words
        if counts is not None:
            parts.write(None, counts)
        if len(words):
            parts.write_masks(words, draft_rows, rows)
        if any(guard.may_cut for guard in guards.values()):
            current = parts.drafted.draft.num_draft_tokens.tolist()
            drafted = parts.masked() if len(words) else parts.drafted
            return self._guarded.verify(parts.given, drafted, parts.scored, guards, current, rows)
        return fetch(parts.end_masked() if len(words) else parts.end())._replace(guards=guards)

    def _capture(self, size: StepSize) -> _Captured:
        inputs, given = self._new_inputs(size)
        if inputs.is_cuda:
            captured = CapturedParts(self.step, given, self._most_masks, self._pool)
            self._pool = captured.pool
            self._parts[size] = captured
        else:
            self._parts[size] = StepParts(self.step, given, self._most_masks)
        # launched in parts only
        return _Captured(inputs, self._parts[size].end)

    def _show(self, draft: Draft) -> _Shown:
        """Copy drafts to the host beside what is launched next."""
        rows = [draft.token_ids, draft.num_draft_tokens.unsqueeze(1)]
        if self._beside is None:
            return _Shown(torch.cat(rows, dim=1), None)
        self._beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._beside):
            found = torch.cat(rows, dim=1)
            host = torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
            host.copy_(found, non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record()
        return _Shown(host, arrived)


class _Shown:
    """Drafts on their way to the host."""

    def __init__(
        self,
        # [B, K + 1] int64: drafts, and how many
        host: Tensor,
        arrived: torch.cuda.Event | None,
    ) -> None:
        self._host = host
        self._arrived = arrived

    def read(self) -> tuple[list[list[int]], list[int]]:
        """The drafts of each slot and their number, once they are there."""
        if self._arrived is not None:
            self._arrived.synchronize()
        rows = self._host.tolist()
        return [row[:-1] for row in rows], [row[-1] for row in rows]
