"""Launches steps whose requests may have grammar states, operation by operation."""

from __future__ import annotations

from harness.engine.constrained_step import ConstrainedStep
from harness.engine.inputs import in_pieces
from harness.engine.runner import EagerRunner, Launched
from harness.engine.step import Step
from harness.engine.step_plan import StepPlan


class ConstrainedRunner:
    """Every step ends before the next one is planned."""

    row_width = 0
    max_prefill_tokens = EagerRunner.max_prefill_tokens
    max_prefill_tokens_with_decodes = EagerRunner.max_prefill_tokens_with_decodes
    graph_bytes = EagerRunner.graph_bytes

    def __init__(self, step: Step, num_slots: int) -> None:
        assert not step.joins
        self.step = step
        self._constrained = ConstrainedStep(step, num_slots)

    def prepare(self) -> None:
        """Nothing is needed."""

    def launch(self, plan: StepPlan) -> Launched:
        step = self.step
        inputs = in_pieces(plan, step.num_speculative_tokens, self.max_prefill_tokens, step.target.device)
        return self._constrained.run(plan, inputs)
