"""The settings of the benchmark. Needs neither Hydra nor torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from harness.config.device import Device
from harness.config.schema import check_seed, check_setting


class Preset(Enum):
    """How much is measured."""

    smoke = "smoke"
    headline = "headline"
    full = "full"
    noise = "noise"


class Flush(Enum):
    """How the L2 is emptied before each repeat."""

    write = "write"
    read = "read"


@dataclass(frozen=True)
class BenchConfig:
    """What is measured, how, and where the results go."""

    preset: Preset = Preset.headline
    """headline: the cases of the tables, a bit more than a minute on an H200; full: one factor at a time around them,
    some minutes; noise: few requests, no statistics, any layout, coupled noise and cuts on rows of normal noise; smoke:
    tiny, to see that everything runs."""
    device: Device = Device.auto
    """cpu goes with --preset smoke only, and measures nothing."""
    cases: str = ""
    """Only cases whose name contains this text, such as block or "R=256 K=3"."""
    case: str = ""
    """One case alone, by its whole name as --list prints it, of any preset; for a profiler."""
    repeats: int = 100
    """Timed repeats of each case, at least 50; with --preset smoke at least 2."""
    limit_s: float = 0.0
    """Seconds after which no other case begins; those left are written down as skipped. 0: no limit."""
    checked: int = 16
    """Requests of each case that are compared with the reference before it is timed."""
    flush: Flush = Flush.write
    """How the L2 is emptied before each repeat: by writing or by reading a buffer several times its size."""
    peers: bool = True
    """Also time eager torch and torch.compile on the cases of headline, and, where they are installed, vLLM's kernels
    and FlashInfer on these and those of noise."""
    questions: bool = True
    """Also answer the two open questions of vLLM PR 35461."""
    seed: int = 0
    """All rows and random streams are drawn from it."""
    output: str = "results/runs/kernel_bench"
    """Folder for the results, table.md, table.csv and the figure."""
    history: str = ""
    """CSV file that gets a line for each case of this commit."""

    def __post_init__(self) -> None:
        min_repeats = 2 if self.preset is Preset.smoke else 50
        check_setting(self.repeats >= min_repeats, "repeats", f"at least {min_repeats}", self.repeats)
        check_setting(self.limit_s >= 0, "limit_s", "0 or more", self.limit_s)
        unchecked = f"{self.checked}; nothing is timed unchecked"
        check_setting(self.checked >= 1, "checked", "at least 1", unchecked)
        check_seed(self.seed)
        check_setting(not (self.case and self.cases), "case", "no --cases beside it", f"cases {self.cases!r}")
        check_setting(bool(self.output), "output", "a folder", "nothing")
        can_run = self.device is not Device.cpu or self.preset is Preset.smoke
        needs_a_gpu = f"{self.preset.name}; the others need a GPU"
        check_setting(can_run, "device cpu", "--preset smoke", needs_a_gpu)
