"""Workers as tasks of a Ray cluster that runs already."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.config.launcher import ClusterConfig

if TYPE_CHECKING:
    from harness.runner.launchers.launcher import Launcher
    from harness.runner.plan.run_plan import RunPlan


@dataclass(frozen=True)
class Ray(ClusterConfig):
    address: str = "auto"
    """Of the Ray cluster: host:port of its head, or auto for the one that this host belongs to."""
    package = "ray"

    def launcher(self, plan: RunPlan) -> Launcher:
        from harness.runner.launchers.ray_run import RayLauncher

        return RayLauncher(plan, self)
