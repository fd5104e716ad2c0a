"""Launches steps whose requests may have guards, operation by operation."""

from __future__ import annotations

from harness.engine.guarded_step import GuardedStep
from harness.engine.inputs import in_pieces
from harness.engine.plan import Plan
from harness.engine.runner import EagerRunner, Launched
from harness.engine.step import Step


class ConstrainedRunner:
    """Every step ends before the next one is planned."""

    row_width = 0
    most_prompt_tokens = EagerRunner.most_prompt_tokens
    most_beside_rounds = EagerRunner.most_beside_rounds
    graph_bytes = EagerRunner.graph_bytes

    def __init__(self, step: Step, num_slots: int) -> None:
        assert not step.joins
        self.step = step
        self._guarded = GuardedStep(step, num_slots)

    def prepare(self) -> None:
        """Nothing is needed."""

    def launch(self, plan: Plan) -> Launched:
        step = self.step
        inputs = in_pieces(plan, step.num_speculative_tokens, self.most_prompt_tokens, step.target.device)
        return self._guarded.run(plan, inputs)
