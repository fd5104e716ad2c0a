"""The settings of a certification. Needs neither Hydra nor torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from harness.config.cli.methods import check_methods
from harness.config.device import Device
from harness.config.schema import check_seed, check_setting
from kernels.methods import TreeMethod, VerificationMethod

PROJECT_CORE = "harness.checks.certification.subject:project_core"


class Size(Enum):
    """How much is simulated."""

    auto = "auto"
    small = "small"
    full = "full"


@dataclass(frozen=True)
class CertifyConfig:
    """What is certified, how, and where the report goes."""

    subject: str = PROJECT_CORE
    """A name of harness/checks/certification/implementations, for example vllm, project or reference; or
    package.module:function that takes a torch device and returns the core to certify, as
    harness/checks/certification/subject.py has it."""
    device: Device = Device.auto
    """auto takes a GPU where there is one."""
    size: Size = Size.auto
    """full: every case, with samples enough to detect a total variation of .003; small: fewer cases and samples; auto
    is full on a GPU and small elsewhere."""
    samples: int = 0
    """Requests simulated in each case, at least 1000; 0 is what the size says."""
    batch: int = 0
    """Requests in flight at a time; 0 is what suits the device."""
    workers: int = 0
    """Processes that run cases at the same time, in turns on all GPUs; 0 takes, on a CPU, one for every 10 cases and at
    most one a core, and on a GPU two less than there are CPU cores, at most 12. The results do not depend on it."""
    methods: tuple[str, ...] = ()
    """Only these verification methods; all lossless ones unless given. PACKAGE.MODULE:NAME is one of your own
    (kernels.methods.Rule); without hooks the reference core alone runs it."""
    cells: str = ""
    """Only cases whose name contains this text."""
    controls: bool = True
    """Also simulate the controls, which must be rejected: with methods only those of these methods, if they have any,
    else all."""
    seed: int = 0
    """All random streams are drawn from it."""
    output: str = "results/runs/certification"
    """Folder for report.md and certification.json."""

    def __post_init__(self) -> None:
        check_methods(self.methods, [method.value for method in (*VerificationMethod, *TreeMethod)])
        for name in ("samples", "batch", "workers"):
            check_setting(getattr(self, name) >= 0, name, "0 or more", getattr(self, name))
        check_setting(not 0 < self.samples < 1000, "samples", "at least 1000", self.samples)
        check_seed(self.seed)
        check_setting(bool(self.output), "output", "a folder", "nothing")
