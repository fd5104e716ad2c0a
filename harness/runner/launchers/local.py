"""Workers as processes of this host, one for each of its devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.config.launcher import LauncherConfig

if TYPE_CHECKING:
    from harness.runner.launchers.launcher import Launcher
    from harness.runner.plan.run_plan import RunPlan


@dataclass(frozen=True)
class Local(LauncherConfig):
    is_remote = False

    def launcher(self, plan: RunPlan) -> Launcher:
        from harness.runner.launchers.local_run import LocalLauncher

        return LocalLauncher(plan)
