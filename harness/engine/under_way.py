"""A step that has been launched and not read yet, on its way through the engine's loop."""

from __future__ import annotations

from typing import NamedTuple

from harness.engine.measuring import DraftsOfStep
from harness.engine.runner import Launched
from harness.engine.step_plan import StepPlan


class UnderWay(NamedTuple):
    """A step that has been launched and not read yet."""

    plan: StepPlan
    launched: Launched
    drafts: DraftsOfStep | None = None
    """If they are measured."""


def completed(under_way: UnderWay | None) -> UnderWay | None:
    """The same with the second half of its step launched, all steps before it having been read."""
    if under_way is None or under_way.launched.rest is None:
        return under_way
    return under_way._replace(launched=under_way.launched.rest())
