"""A cell with its settings, its metrics and the baseline that it is compared with; no tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from harness.analysis.block_drift import BlockWork, Drift, block_drift
from harness.analysis.estimates import NOT_AVAILABLE, Estimate, Estimates, paired_ratio
from harness.analysis.failed_cells import AXES, with_found_settings
from harness.analysis.settings_columns import SettingReader, other_settings, settings_columns
from harness.analysis.speedup_bound import NOISE, ROUNDING, speedup_bound
from harness.analysis.sums import cell_sums
from harness.config.identity import key_without
from harness.config.models import checkpoint_names
from harness.config.sections import MeasurementConfig
from harness.records.files import SUFFIX
from harness.records.runs import Run
from harness.records.schema import CellRecord
from harness.records.strict_json import at

ABOVE_BOUND, BLOCKS_DIFFER = "speedup above its bound", "blocks differ"
GPU_SHARED = "processes of others had the GPU open"

MOSTLY_DRAFTED = 0.8
"""Where a position was drafted in a smaller share of the rounds with drafts, reports say that rates by position are of
different rounds."""


@dataclass(frozen=True)
class CellResult:
    """A cell with its settings as plain columns and its metrics."""

    record: CellRecord
    settings: Mapping[str, Any]
    estimates: Estimates
    baseline: CellResult | None = None
    """The autoregressive baseline of the same run, unless it failed; a baseline is its own."""

    def __getitem__(self, name: str) -> Any:
        return self.settings[name]

    @property
    def is_baseline(self) -> bool:
        return self.settings["drafter"] == "none"

    @property
    def has_failed_requests(self) -> bool:
        """Whether requests got no answer while others did, so that its times compare with no other cell's."""
        return self.record.num_failed_requests > 0

    @cached_property
    def has_own_sampling(self) -> bool:
        """Whether a request has sampling parameters of its own."""
        return any(request.sampling is not None for request in self.record.requests)

    @cached_property
    def is_argmax(self) -> bool:
        """Whether every request is decoded at temperature 0."""
        default = self.settings["temperature"]
        own = [default if item.sampling is None else item.sampling["temperature"] for item in self.record.requests]
        return not any(own or [default])

    @cached_property
    def context_key(self) -> str:
        """The run and all settings but AXES: equal for cells that compare."""
        return self.key_without(*AXES)

    def key_without(self, *settings: str) -> str:
        """The run and all settings but some: equal for cells of a run that differ in those at most."""
        return key_without({**self.record.config, "run": self["run"]}, *settings)

    @cached_property
    def speedup(self) -> Estimate:
        """Output throughput over the baseline's."""
        if self.record.has_failed or self.has_failed_requests:
            return NOT_AVAILABLE
        if self.is_baseline:
            return Estimate(1.0, 1.0, 1.0)
        if self.baseline is None:
            return NOT_AVAILABLE
        return paired_ratio(self.baseline.estimates, self.estimates, "output_tokens_per_s")

    @cached_property
    def speedup_bound(self) -> float:
        """The most that its drafts can have bought (`harness.analysis.speedup_bound`); nan without a speedup."""
        if self.baseline is None or self.record.has_failed or math.isnan(self.speedup.value):
            return math.nan
        return 1.0 if self.is_baseline else speedup_bound(self.baseline.estimates, self.estimates)

    @property
    def exceeds_bound(self) -> bool:
        """Whether its speedup is above its bound, if only by noise."""
        return self.speedup.value > self.speedup_bound * (1 + ROUNDING)

    @property
    def is_impossible(self) -> bool:
        """Whether its speedup is above its bound by more than noise."""
        return self.speedup.value > self.speedup_bound * (1 + NOISE)

    @cached_property
    def drift(self) -> float | None:
        """By what share its blocks differ, if by more than prompts explain."""
        return self.judged_drift.share

    @cached_property
    def judged_drift(self) -> Drift:
        """Whether its blocks differ; nothing of a baseline, and of a cell without a speedup."""
        if self.baseline is None or self.is_baseline or math.isnan(self.speedup.value):
            return Drift()
        return block_drift(self.block_work, self.baseline.block_work, self.speedup)

    @cached_property
    def block_work(self) -> BlockWork | None:
        """Its forwards and seconds by block."""
        return BlockWork.of(self.record)

    @property
    def has_shared_gpu(self) -> bool:
        """Whether a process that is none of the run's had the GPU open beside one of its blocks."""
        return any(block.gpu is not None and block.gpu.num_foreign_processes for block in self.record.blocks)

    @property
    def disturbed(self) -> str:
        """Why its times, or those of its baseline, are of a machine that was disturbed or shared; empty where nothing
        says so."""
        found = {
            ABOVE_BOUND: self.exceeds_bound,
            BLOCKS_DIFFER: self.drift is not None,
            GPU_SHARED: self.has_shared_gpu or (self.baseline is not None and self.baseline.has_shared_gpu),
        }
        return "; ".join(text for text, holds in found.items() if holds)

    @property
    def positions_vary(self) -> bool:
        """Whether a later position was drafted in clearly fewer rounds than the first (MOSTLY_DRAFTED).

        Rates by position are then of different rounds, and may rise.
        """
        counts = [
            self.estimates.sums.sums[f"num_draft_tokens_per_pos_{position}"].sum()
            for position in range(1, self.estimates.sums.num_positions + 1)
        ]
        return bool(counts) and bool(min(counts) < MOSTLY_DRAFTED * counts[0])

    @property
    def drafts_rarely(self) -> bool:
        """Whether fewer than half of its rounds have a full draft: lengths are over those alone."""
        num_drafts, num_rounds = (self.estimates.total(name) for name in ("num_full_drafts", "num_rounds"))
        return not self.is_baseline and num_drafts < num_rounds / 2

    @property
    def cache_text(self) -> str:
        """What is special about the draft-logit cache: another type than the drafter's, other values drawn from."""
        dtype = self["draft_cache_dtype"]
        kept = f"{dtype} cache" if dtype not in ("", self["dtype"]) else ""
        return f"{kept}, drawn unrounded" if self["drawn_from"] == "unrounded" else kept

    @property
    def method(self) -> str:
        """Verification method with its parameters, and what is special about the draft-logit cache."""
        return ", ".join(text for text in (self["verification"], self.cache_text) if text)

    @property
    def drafts(self) -> str:
        """Draft sampling, what decides the depth, the tree, and what is special about the draft-logit cache."""
        texts = [text for text in (self["depth"], self.tree_text, self.cache_text) if text]
        return self["draft_sampling"] + (f" ({', '.join(texts)})" if texts else "")

    @property
    def tree_text(self) -> str:
        """The tree of its drafts and how siblings are drawn; empty for chains."""
        siblings = f", {self['siblings']}" if self["siblings"] else ""
        return f"tree {self['tree']}{siblings}" if self["tree"] else ""

    @property
    def draft_logit_cache_mib(self) -> float:
        """Its size; nan where it is not known."""
        size = self.record.draft_logit_cache_bytes
        return math.nan if size is None else size / 2**20

    def estimate(self, name: str) -> Estimate:
        """A metric with its interval, the speedup included."""
        return self.speedup if name == "speedup" else self.estimates.estimate(name)


def analyse(runs: Iterable[Run]) -> list[CellResult]:
    """Compute the sums of every cell and find its baseline.

    Raises:
        ValueError: a record has settings that this version cannot read; the message names the file.
    """
    cells: list[CellResult] = []
    for run in runs:
        num_unreadable = len(run.unreadable)
        readable, found = analysed(run)
        if len(readable.unreadable) > num_unreadable:
            raise ValueError(readable.unreadable[num_unreadable])
        cells += found
    return cells


def analysed(run: Run) -> tuple[Run, list[CellResult]]:
    """The cells of a run whose settings can be read, and the run, with the others among the unreadable."""
    kept, unreadable = list[CellRecord](), list[str]()
    estimates: dict[str, Estimates] = {}
    for record in run.cells:
        try:
            settings_columns(record, run.name)
            estimates[record.cell_id] = _estimates(record)
        except ValueError as error:
            unreadable.append(f"{run.cells_folder / record.cell_id}{SUFFIX}: {error}")
        else:
            kept.append(record)
    records = with_found_settings(kept)
    columns = [settings_columns(record, run.name) for record in records]
    others = other_settings(columns, [record.config for record in records])
    checkpoints = checkpoint_names({settings["drafter_path"] for settings in columns})
    alone = [
        CellResult(
            record,
            settings | {"other_settings": other, "drafter_checkpoint": checkpoints[settings["drafter_path"]]},
            estimates[record.cell_id],
        )
        for record, settings, other in zip(records, columns, others, strict=True)
    ]
    baselines: dict[str, CellResult] = {}
    for cell in alone:
        if cell.is_baseline and not cell.record.has_failed:
            baselines.setdefault(cell.context_key, cell)
    cells = [replace(cell, baseline=baselines.get(cell.context_key)) for cell in alone]
    return replace(run, cells=tuple(kept), unreadable=(*run.unreadable, *unreadable)), cells


def _estimates(record: CellRecord) -> Estimates:
    setting, names = SettingReader(record), ("num_resamples", "confidence")
    chosen = {name: setting(f"measurement.{name}") for name in names}
    blocks = {name: value for name, value in setting("measurement").items() if name == "num_blocks"}
    at(f"cell {record.cell_id}", lambda: MeasurementConfig(**chosen, **blocks))
    return Estimates(cell_sums(record), chosen["num_resamples"], chosen["confidence"])
