"""Workers as jobs of SLURM, by submitit."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from harness.config.launcher import ClusterConfig
from harness.config.models import require

if TYPE_CHECKING:
    from harness.runner.launchers.launcher import Launcher
    from harness.runner.plan.run_plan import RunPlan

NO_SLURM = (
    "launcher=slurm: expected the commands of SLURM (srun, sbatch) on this host, found none; run it where jobs are "
    "submitted, or try it out with launcher.executor=local"
)


class Executor(Enum):
    """Of submitit."""

    slurm = "slurm"
    local = "local"


@dataclass(frozen=True)
class Slurm(ClusterConfig):
    time_limit_min: int = 720
    """Of a job; it stops 90 seconds before, and another follows."""
    partition: str | None = None
    """Of SLURM; null is the cluster's default."""
    sbatch: tuple[str, ...] = ()
    """More options of sbatch, such as [account=lab,exclusive]."""
    executor: Executor = Executor.slurm
    """Of submitit; local tries the settings out on this host, without SLURM."""
    package = "submitit"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.time_limit_min >= 5, "launcher.time_limit_min", "5 or more", self.time_limit_min)
        for option in self.sbatch:
            fits = re.fullmatch(r"[a-z][a-z-]*(=[^\s]+)?", option) is not None
            require(fits, "launcher.sbatch", "options as name or name=value, without dashes", option)

    @property
    def sbatch_options(self) -> Mapping[str, str | bool]:
        """The options of `sbatch` by name; True for one without a value."""
        parts = (option.partition("=") for option in self.sbatch)
        return {name.replace("-", "_"): value if equals else True for name, equals, value in parts}

    def check(self) -> None:
        if self.executor is Executor.slurm and shutil.which("srun") is None:
            raise ValueError(NO_SLURM)

    def launcher(self, plan: RunPlan) -> Launcher:
        from harness.runner.launchers.slurm_run import SlurmLauncher

        return SlurmLauncher(plan, self)
