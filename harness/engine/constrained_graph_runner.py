"""Steps whose requests may have grammar states: as one CUDA graph where the host need not take part, else in parts.

While a request reasons, a step is one graph, launched ahead as without grammars; the device itself defers a slot in
whose round reasoning may end (see Step). A deferred round runs again in parts, and so does every step while some
request is in its answer: the host looks at the drafts beside the target's forward, and launches the rest after it. In
the answer drafts are drawn operation by operation, under masks of the host. Everything else is captured. Where no
request draws under masks, the first parts are launched ahead too: the host reads the step before them meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from harness.engine.constrained_step import (
    ConstrainedStep,
    cut_rounds,
    drafting_slots,
    grammar_states_of,
    masking_drafts,
)
from harness.engine.constraint.grammar_state import GrammarState
from harness.engine.graph_runner import CapturedStep, GraphRunner, StepSize, copy_in
from harness.engine.runner import Launched
from harness.engine.sequence import Sequence
from harness.engine.slots import StepInputs, ending_row
from harness.engine.step import Step, StepOutput
from harness.engine.step_parts import CapturedParts, StepParts
from harness.engine.step_plan import StepPlan


class ConstrainedGraphRunner(GraphRunner):
    """A step in parts takes its second half (`Launched.rest`) when all steps before it were read."""

    def __init__(self, step: Step, num_slots: int, max_prefill_tokens_with_decodes: int | None = None) -> None:
        super().__init__(step, num_slots, max_prefill_tokens_with_decodes)
        self._constrained = ConstrainedStep(step, num_slots)
        self._max_masks = num_slots * (step.num_speculative_tokens + 1)
        self._parts: dict[StepSize, StepParts] = {}
        self._endings = [ending_row(None)] * num_slots
        """What the device has of them."""

    def rehearse_on_meta(self) -> None:
        super().rehearse_on_meta()
        for parts in self._parts.values():
            parts.run_all()

    def launch(self, plan: StepPlan) -> Launched:
        captured = self._take_in(plan)
        self._write_endings(plan)
        if not plan.may_be_constrained:
            return self._results.fetch(captured.run())
        if not plan.needs_host:
            launched = self._results.fetch(captured.run())
            return launched._replace(grammar_states=grammar_states_of(plan), ran_as_one_graph=True)
        parts = self._parts[self._size(plan)]
        parts.draft()
        in_answer = masking_drafts(plan) if self.step.num_speculative_tokens else {}
        if in_answer:
            self._constrained.masks.clear()
            return self._run_in_answer(parts, grammar_states_of(plan), drafting_slots(plan), in_answer)
        parts.score()
        unread = Launched(StepOutput(parts.shown, parts.scored.logits, parts.drafted.draft), parts.shown, None)
        return unread._replace(rest=lambda: self._rest(plan, parts))

    def _rest(self, plan: StepPlan, parts: StepParts) -> Launched:
        """The second half of a step, from the drafts on the host to its end."""
        grammar_states, drafting = grammar_states_of(plan), drafting_slots(plan)
        self._constrained.masks.clear()
        drafts, counts = parts.read_drafts()
        counts_to_verify = list(counts)
        rows = self._constrained.before_verification(grammar_states, drafting, counts_to_verify, drafts)
        return self._end(parts, grammar_states, rows, counts_to_verify if counts_to_verify != counts else None, None)

    def _write_endings(self, plan: StepPlan) -> None:
        """Tell the device how the reasoning of requests that begin ends, where it does not know."""
        for chunk in plan.chunks:
            slot, grammar_state = chunk.sequence.slot, chunk.sequence.request.grammar_state
            row = ending_row(None if grammar_state is None else grammar_state.parser.ending)
            if chunk.start == 0 and row != self._endings[slot]:
                copy_in(np.array(row), self.step.state.endings[slot])
                self._endings[slot] = row

    def _run_in_answer(
        self,
        parts: StepParts,
        grammar_states: dict[int, GrammarState],
        drafting: Mapping[int, Sequence],
        in_answer: dict[int, GrammarState],
    ) -> Launched:
        """A step in which a request in its answer drafts, from its drafts to its end."""
        masked = self._constrained.masked_drafts(in_answer, parts.given)
        draft = self.step.draft(parts.given, masked).draft
        drafts, counts = draft.token_ids.tolist(), draft.num_draft_tokens.tolist()
        parts.write(draft.token_ids, counts)
        parts.score()
        counts_to_verify = list(counts)
        rows = self._constrained.before_verification(grammar_states, drafting, counts_to_verify, drafts, masked)
        return self._end(
            parts, grammar_states, rows, counts_to_verify if counts_to_verify != counts else None, masked.rows
        )

    def _end(
        self,
        parts: StepParts,
        grammar_states: dict[int, GrammarState],
        rows: list[int],
        counts: list[int] | None,
        draft_rows: Tensor | None,
    ) -> Launched:
        """The rest of a step; `counts` are other counts of drafts than it has, `draft_rows` their masks."""
        masks = self._constrained.masks
        may_cut = any(grammar_state.may_cut for grammar_state in grammar_states.values())
        if counts is not None:
            parts.write(None, counts)
        if masks.num_masks or may_cut:
            parts.write_masks(masks, draft_rows, rows)
        if may_cut:
            decided, num_tokens = parts.verify_to_cut().cpu(), self.step.num_speculative_tokens
            outcomes, num_kept = cut_rounds(grammar_states, decided.tolist(), num_tokens)
            output = parts.finish(num_kept or [num_tokens + 1] * len(decided))
            return Launched(output, decided, None, outcomes)
        ended = self._results.fetch(parts.end_masked() if masks.num_masks else parts.end())
        return ended._replace(grammar_states=grammar_states)

    def _capture(self, size: StepSize) -> CapturedStep:
        captured = super()._capture(size)
        if captured.inputs.is_cuda:
            parts = CapturedParts(self.step, captured.given, self._max_masks, self._pool)
            self._parts[size], self._pool = parts, parts.pool
            self._rehearse_masked_drafts(parts)
        else:
            self._parts[size] = StepParts(self.step, captured.given, self._max_masks)
        return captured

    def _rehearse_masked_drafts(self, parts: StepParts) -> None:
        """Draw drafts under masks that forbid nothing, as they are drawn in the answer: operation by operation.

        No capture has compiled these kernels; it would else happen when the first request of a run is after its
        end of reasoning, in its time.
        """
        self._constrained.masks.clear()
        draft = self.step.draft(parts.given, self._constrained.masked_drafts({}, parts.given)).draft
        parts.write(draft.token_ids, draft.num_draft_tokens.tolist())

    def _run(self, given: StepInputs) -> StepOutput:
        return self.step(given, defers=True)
