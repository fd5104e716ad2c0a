"""What the kernel benchmark writes down, as plain dataclasses and as JSON.

This module does not know torch, so that tables and the figure can be made again anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from harness.checks.kernel_bench.case import Case
from harness.checks.timing.measured import Machine, Timing
from harness.records.strict_json import parse_json, typed
from harness.report.files import json_text, write_files

SCHEMA_VERSION = 1
FILE_NAME = "bench_kernels.json"
CORE_NAMES = ("triton", "reference")
"""Implementations that are the project's own core."""


@dataclass(frozen=True)
class AgreementCount:
    """What the comparison with the reference found, before anything was timed."""

    num_requests: int
    num_decisions: int
    num_disagreements: int
    """All of them within rounding of a boundary: otherwise nothing would have been reported."""


class Status(Enum):
    """What became of a case."""

    measured = "measured"
    skipped = "skipped"
    failed = "failed"


@dataclass(frozen=True)
class Measurement:
    """One implementation on one case."""

    case: Case
    implementation: str
    """triton or reference for the project's own core; else a peer."""
    status: Status = Status.measured
    reason: str = ""
    """Why it was skipped or failed; a remark on a measured one."""
    timing: Timing | None = None
    again_us: float | None = None
    """Median of as many repeats of a second graph: differences no larger than that mean nothing."""
    warm_us: float | None = None
    """Median of as many repeats right after one another: the L2 holds what it can of the rows."""
    mean_accepted: float | None = None
    """Accepted tokens per request in this batch."""
    bytes_all_rows: int | None = None
    bytes_needed: int | None = None
    workspace_bytes: int | None = None
    extra_bytes: int | None = None
    """Most memory held during a call beyond its arguments: workspace, temporaries and results."""
    num_launches: int | None = None
    agreement: AgreementCount | None = None

    def __post_init__(self) -> None:
        if (self.status is Status.measured) != (self.timing is not None):
            raise ValueError(f"expected a time if and only if {self.case.name} was measured, found {self}")


@dataclass(frozen=True)
class Variant:
    """One way of doing the same work, timed to answer a question."""

    question: str
    name: str
    num_requests: int
    timing: Timing
    extra_bytes: int | None
    num_launches: int | None


@dataclass(frozen=True)
class KernelResults:
    """Everything of one run."""

    settings: dict[str, Any]
    machine: Machine
    measurements: tuple[Measurement, ...]
    variants: tuple[Variant, ...]
    provenance: dict[str, Any]
    wall_s: float
    schema_version: int = SCHEMA_VERSION

    @property
    def of_core(self) -> list[Measurement]:
        """Those of the project's own core that have a time."""
        return [each for each in self.measurements if each.implementation in CORE_NAMES and each.timing is not None]

    @property
    def num_failed(self) -> int:
        return sum(each.status is Status.failed for each in self.measurements)


def write_results(results: KernelResults, folder: Path) -> Path:
    """Write the results into a folder; returns the path of the file."""
    return write_files(folder, {FILE_NAME: json_text(results)})[0]


def read_results(folder: Path) -> KernelResults:
    """Read what `write_results` left in a folder.

    Raises:
        ValueError: there is nothing, or it has another schema.
    """
    path = folder / FILE_NAME
    if not path.is_file():
        raise ValueError(f"expected {FILE_NAME} in {folder}, found none; run rejection-lab bench first")
    try:
        content = parse_json(path.read_bytes())
        found = content.get("schema_version") if isinstance(content, dict) else None
        if found != SCHEMA_VERSION:
            raise ValueError(f"expected schema version {SCHEMA_VERSION}, found {found}; measure again")
        results: KernelResults = typed(KernelResults, content)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    return results
