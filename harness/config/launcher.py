"""Where the worker processes of a run are started; belongs to the whole run and to no cell."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from typing import Any


class LauncherKind(Enum):
    """What starts worker processes."""

    local = "local"
    """This host."""
    slurm = "slurm"
    """SLURM, by submitit."""
    ray = "ray"
    """A Ray cluster that runs already."""


class Executor(Enum):
    """Of submitit."""

    slurm = "slurm"
    local = "local"


@dataclass
class LauncherConfig:
    """Where the worker processes of a run are started."""

    kind: LauncherKind = LauncherKind.local
    """What starts them."""
    num_workers: int = 1
    """Jobs at the same time, of a cluster; each runs one group of comparable cells after the other."""
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
    time_limit_min: int = 720
    """Of a job; it stops 90 seconds before, and another follows."""
    partition: str | None = None
    """Of SLURM; null is the cluster's default."""
    sbatch: list[str] = field(default_factory=list)
    """More options of sbatch, such as [account=lab,exclusive]."""
    executor: Executor = Executor.slurm
    """Of submitit; local tries the settings out on this host, without SLURM."""
    address: str = "auto"
    """Of the Ray cluster: host:port of its head, or auto for the one that this host belongs to."""

    def __post_init__(self) -> None:
        for item in fields(self):
            default = item.default if item.default_factory is MISSING else item.default_factory()
            kinds = _USED_BY.get(item.name, tuple(LauncherKind))
            if self.kind not in kinds and getattr(self, item.name) != default:
                raise ValueError(
                    f"launcher.{item.name}: expected a setting that launcher={self.kind.value} uses, found one that "
                    f"only {' and '.join(kind.value for kind in kinds)} has"
                )
        _check("num_workers", self.num_workers >= 1, "1 or more", self.num_workers)
        _check("gpus_per_worker", self.gpus_per_worker >= 0, "0 or more", self.gpus_per_worker)
        _check("cpus_per_worker", self.cpus_per_worker >= 1, "1 or more", self.cpus_per_worker)
        _check("memory_gb", self.memory_gb is None or self.memory_gb > 0, "more than 0", self.memory_gb)
        _check("time_limit_min", self.time_limit_min >= 5, "5 or more", self.time_limit_min)
        for option in self.sbatch:
            _check("sbatch", _OPTION.fullmatch(option), "options as name or name=value, without dashes", option)

    @property
    def sbatch_options(self) -> Mapping[str, str | bool]:
        """The options of `sbatch` by name; True for one without a value."""
        parts = (option.partition("=") for option in self.sbatch)
        return {name.replace("-", "_"): value if equals else True for name, equals, value in parts}


_CLUSTERS = tuple(kind for kind in LauncherKind if kind is not LauncherKind.local)
_USED_BY = {
    **dict.fromkeys(("num_workers", "gpus_per_worker", "gpu_type", "cpus_per_worker", "memory_gb", "host"), _CLUSTERS),
    **dict.fromkeys(("time_limit_min", "partition", "sbatch", "executor"), (LauncherKind.slurm,)),
    "address": (LauncherKind.ray,),
}
"""Launchers that use a setting, by its name; all of them use one that is not listed."""
_OPTION = re.compile(r"[a-z][a-z-]*(=[^\s]+)?")


def _check(name: str, holds: Any, expected: str, found: object) -> None:
    if not holds:
        raise ValueError(f"launcher.{name}: expected {expected}, found {found}")
