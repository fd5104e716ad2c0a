"""Which runner launches the steps of an engine: with or without CUDA graphs, with or without the host's part."""

from __future__ import annotations

from harness.engine.constrained_graph_runner import ConstrainedGraphRunner
from harness.engine.constrained_step import ConstrainedRunner
from harness.engine.depth import Depth
from harness.engine.graph_runner import GraphRunner
from harness.engine.runner import EagerRunner
from harness.engine.settings import EngineSettings
from harness.engine.step import Step


def new_runner(step: Step, settings: EngineSettings, depth: Depth | None) -> EagerRunner | GraphRunner:
    """A runner of an engine's steps.

    Args:
        step: with the engine's target, drafter and slots.
        settings: of the engine.
        depth: chooses the depth of its steps; None where all rounds draft K tokens.
    """
    num_slots, limit = settings.num_slots, settings.prompt_tokens_beside_rounds
    assert depth is None or not settings.constrained, "masks are laid out for rounds of K drafts"
    if not settings.graphs:
        return ConstrainedRunner(step, num_slots) if settings.constrained else EagerRunner(step)
    if settings.constrained:
        return ConstrainedGraphRunner(step, num_slots, limit)
    return GraphRunner(step, num_slots, limit, None if depth is None else depth.choices)
