"""What was seen of the GPU beside the blocks of a cell, where it could explain a difference between cells, in words."""

from __future__ import annotations

from harness.analysis.cell import CellResult
from harness.records.gpu_samples import GpuSamples
from harness.records.schema import CellRecord
from harness.report.cell_names import DISTURBED

SLOWDOWNS = ("sw_power_cap", "hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
"""Reasons for lower clocks that come and go; the others are settings of the machine."""
CLOCK_RATIO = 1.03
"""Of the mean SM clocks of two blocks, from which on it is noted: samples of a quiet GPU differ by less."""


def gpu_notes(cell: CellResult) -> list[str]:
    """What could explain that a cell was faster or slower than another; empty without a GPU."""
    seen = _seen(cell.record)
    others = [item for item in seen if item.num_other_processes and item.num_foreign_processes is None]
    foreign = [item for item in seen if item.num_foreign_processes]
    slowed = [item for item in seen if item.clock_reasons.keys() & set(SLOWDOWNS)]
    reasons = sorted({name for item in slowed for name in item.clock_reasons} & set(SLOWDOWNS))
    found = []
    if foreign:
        found.append(
            f"processes of others had the GPU open in {len(foreign)} of {len(seen)} blocks: whether they computed is "
            f"not known; run again on a GPU of your own (times, and speedups over them, are marked {DISTURBED})"
        )
    if others:
        found.append(
            f"other processes had the GPU open in {len(others)} of {len(seen)} blocks; whether they were the run's own "
            "servers or ranks is not known"
        )
    if slowed:
        found.append(f"clocks were held down ({', '.join(reasons)}) in {len(slowed)} of {len(seen)} blocks")
    beside = [] if cell.baseline is None or cell.is_baseline else _seen(cell.baseline.record)
    clocks = [item.mean_sm_clock_mhz for item in [*seen, *beside] if item.mean_sm_clock_mhz]
    if clocks and max(clocks) > CLOCK_RATIO * min(clocks):
        whose = "its blocks and its baseline's" if beside else "its blocks"
        found.append(f"the mean SM clock of {whose} was {min(clocks):.0f} to {max(clocks):.0f} MHz")
    unknown = {f"{what} not known ({why})": None for item in seen for what, why in item.unknown.items()}
    return found + list(unknown)


def _seen(record: CellRecord) -> list[GpuSamples]:
    return [item.gpu for item in record.blocks if item.gpu is not None]
