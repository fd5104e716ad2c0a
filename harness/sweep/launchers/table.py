"""The launcher that a plan asks for."""

from __future__ import annotations

from harness.compose.run_plan import RunPlan
from harness.settings.launcher import LauncherKind
from harness.sweep.launchers.launcher import Launcher
from harness.sweep.launchers.local import LocalLauncher


def launcher_of(plan: RunPlan) -> Launcher:
    """The launcher of a plan.

    Raises:
        SettingsError: its cluster is not there.
    """
    if plan.launcher.kind is LauncherKind.slurm:
        from harness.sweep.launchers.slurm import SlurmLauncher

        return SlurmLauncher(plan)
    if plan.launcher.kind is LauncherKind.ray:
        from harness.sweep.launchers.ray import RayLauncher

        return RayLauncher(plan)
    return LocalLauncher(plan)
