"""What was seen of a GPU beside a block of requests; knows no driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.records import InconsistentRecordError
from harness.records.strict_json import Int64


@dataclass(frozen=True, slots=True)
class GpuSamples:
    """Samples of one GPU: before a block, while it ran, and after it."""

    num_samples: Int64 = 0
    """All of them."""
    num_busy_samples: Int64 = 0
    """Those in which the GPU is known to have had work; clocks and their reasons are of these, since an idle GPU lowers
    its clocks."""
    min_sm_clock_mhz: float | None = None
    mean_sm_clock_mhz: float | None = None
    max_sm_clock_mhz: float | None = None
    min_memory_clock_mhz: float | None = None
    clock_reasons: Mapping[str, Int64] = field(default_factory=dict)
    """What held the clocks down -> busy samples in which it did; the names are those of NVML, as in sw_power_cap."""
    num_other_processes: Int64 | None = None
    """Processes beside this one that had the GPU open for computing: the most in one sample. None where unknown."""
    num_foreign_processes: Int64 | None = None
    """Those of them that are none of the run's own (its servers and ranks), at least; likewise. Records of earlier
    versions do not name them."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """What could not be found out -> why."""

    def __post_init__(self) -> None:
        num_others, num_foreign = self.num_other_processes or 0, self.num_foreign_processes or 0
        counts = (*self.clock_reasons.values(), num_others, num_foreign)
        if not 0 <= self.num_busy_samples <= self.num_samples or min(counts) < 0:
            raise InconsistentRecordError(
                "expected counts of 0 or more and no more busy samples than samples, found "
                f"{self.num_busy_samples} of {self.num_samples}, and {list(counts)}"
            )
        if num_foreign > num_others:
            raise InconsistentRecordError(
                f"expected foreign processes among the others, found {num_foreign} of {num_others}"
            )
        clocks = (self.min_sm_clock_mhz, self.mean_sm_clock_mhz, self.max_sm_clock_mhz)
        known = [clock for clock in clocks if clock is not None]
        if len(known) not in (0, len(clocks)) or known != sorted(known):
            raise InconsistentRecordError(f"expected min <= mean <= max of the SM clock, or none, found {clocks}")
