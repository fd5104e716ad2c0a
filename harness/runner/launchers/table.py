"""The launcher that a plan asks for."""

from __future__ import annotations

from harness.config.launcher import LauncherKind
from harness.runner.launchers.launcher import Launcher
from harness.runner.launchers.local import LocalLauncher
from harness.runner.plan.run_plan import RunPlan


def launcher_of(plan: RunPlan) -> Launcher:
    """The launcher of a plan.

    Raises:
        SettingsError: its cluster is not there.
    """
    if plan.launcher.kind is LauncherKind.slurm:
        from harness.runner.launchers.slurm import SlurmLauncher

        return SlurmLauncher(plan)
    if plan.launcher.kind is LauncherKind.ray:
        from harness.runner.launchers.ray import RayLauncher

        return RayLauncher(plan)
    return LocalLauncher(plan)
