"""Where the worker processes of a run are started; belongs to the whole run and to no cell.

The settings of each launcher stand in its module of harness.runner.launchers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from harness.config.models import require
from harness.config.union import name_of, union_of

if TYPE_CHECKING:
    from harness.runner.launchers.launcher import Launcher
    from harness.runner.plan.run_plan import RunPlan

LAUNCHERS = {
    "local": "harness.runner.launchers.local:Local",
    "slurm": "harness.runner.launchers.slurm:Slurm",
    "ray": "harness.runner.launchers.ray:Ray",
}
"""Name -> PACKAGE.MODULE:CLASS of the settings."""


@dataclass(frozen=True)
class LauncherConfig:
    """The settings of a launcher, which are the fields of its dataclass, have defaults, and a docstring each.

    A launcher of the user's own is the same, outside of the package: `launcher=PACKAGE.MODULE:NAME`.
    """

    is_remote: ClassVar[bool] = True
    """Whether workers may run on other hosts, whose devices are not known here."""
    package: ClassVar[str] = ""
    """What must be installed for it beside this project."""

    @property
    def kind(self) -> str:
        """Its name."""
        return name_of(self, LAUNCHERS)

    def check(self) -> None:
        """Raise ValueError where workers cannot be started from this host."""

    def launcher(self, plan: RunPlan) -> Launcher:
        """What starts the workers of a plan; ValueError where its cluster is not there."""
        raise NotImplementedError


@dataclass(frozen=True)
class ClusterConfig(LauncherConfig):
    """Of a launcher that starts workers as jobs of a cluster."""

    num_workers: int = 1
    """Jobs at the same time; each runs one group of comparable cells after the other."""
    gpus_per_worker: int = 1
    """GPUs of a job."""
    gpu_type: str | None = None
    """The GPU that a job asks for, by the cluster's name; null takes any, and groups may then get different ones."""
    cpus_per_worker: int = 4
    """CPU cores of a job."""
    memory_gb: float | None = None
    """Memory of a job; null is the cluster's default."""
    host: str | None = None
    """Name or address of this host by which jobs reach it; null is its host name, or with Ray its address there."""

    def __post_init__(self) -> None:
        for name, least in (("num_workers", 1), ("gpus_per_worker", 0), ("cpus_per_worker", 1)):
            require(getattr(self, name) >= least, f"launcher.{name}", f"{least} or more", getattr(self, name))
        require(self.memory_gb is None or self.memory_gb > 0, "launcher.memory_gb", "more than 0", self.memory_gb)


def launcher_of(name: str, **settings: Any) -> LauncherConfig:
    """A launcher with its settings; those that are not given have their defaults.

    Args:
        name: built-in, or PACKAGE.MODULE:NAME.
        settings: by name.

    Raises:
        ValueError: there is no such launcher, or a setting is out of range.
        TypeError: it has no such setting.
    """
    found: LauncherConfig = LAUNCHER.build(name, settings)
    return found


LAUNCHER = union_of(
    LauncherConfig,
    LAUNCHERS,
    section="launcher",
    tag="kind",
    default="local",
    doc="Where the worker processes of a run are started.",
    tag_doc="What starts them: this host, SLURM by submitit, or a Ray cluster that runs already; or "
    "PACKAGE.MODULE:NAME, settings of your own (harness.config.launcher).",
)
