"""The results of runs: one row per cell, every metric with its interval.

What the columns mean is in `harness.metrics.definitions` (and results/README.md). `load_results` is the entry for
notebooks. This module does not know how results are printed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from harness.metrics.block_drift import block_drift
from harness.metrics.columns import COUNTS, POSITION_COUNTS, column_names, with_interval
from harness.metrics.estimates import NOT_AVAILABLE, Estimate, Estimates, paired_ratio
from harness.metrics.other_settings import other_settings
from harness.metrics.saved_tables import find_cell_tables, read_cell_tables
from harness.metrics.sums import cell_sums
from harness.records.runs import Run, read_runs
from harness.records.schema import CellRecord
from harness.settings.guarantee import weights_label
from harness.settings.identity import key_without
from harness.settings.models import Weights, drafter_traits
from harness.settings.usage import SettingsView
from kernels.methods import parameters_of

AXES = ("drafter", "drafting", "verification", "measurement", "draft_sampling", "guarantee")
"""Settings in which a cell may differ from its baseline."""
FROM_RECORD = (
    "num_skipped_turns",
    "draft_logit_cache_bytes",
    "target_cache_bytes",
    "drafter_cache_bytes",
    "graph_bytes",
    "num_target_parameters",
    "num_drafter_parameters",
)


@dataclass(frozen=True)
class Cell:
    """A cell with its settings as plain columns and its metrics."""

    record: CellRecord
    settings: Mapping[str, Any]
    estimates: Estimates
    baseline: Cell | None = None
    """The autoregressive baseline of the same run; a baseline is its own."""

    def __getitem__(self, name: str) -> Any:
        return self.settings[name]

    @property
    def is_baseline(self) -> bool:
        return self.settings["drafter"] == "none"

    @cached_property
    def context_key(self) -> str:
        """The run and everything but drafter, drafting and verification: equal for cells that compare."""
        return self.key_without(*AXES)

    def key_without(self, *settings: str) -> str:
        """The run and all settings but some: equal for cells of a run that differ in those at most."""
        return key_without({**self.record.config, "run": self["run"]}, *settings)

    @cached_property
    def speedup(self) -> Estimate:
        """Output throughput over the baseline's."""
        if self.is_baseline:
            return Estimate(1.0, 1.0, 1.0)
        if self.baseline is None:
            return NOT_AVAILABLE
        return paired_ratio(self.baseline.estimates, self.estimates, "output_tokens_per_s")

    @cached_property
    def drift(self) -> float | None:
        """`harness.metrics.block_drift.block_drift`."""
        return block_drift(self)

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
        """Draft sampling, and what is special about the draft-logit cache."""
        return self["draft_sampling"] + (f" ({self.cache_text})" if self.cache_text else "")

    def estimate(self, name: str) -> Estimate:
        """A metric with its interval, the speedup included."""
        return self.speedup if name == "speedup" else self.estimates.estimate(name)


def load_results(path: str | Path) -> pd.DataFrame:
    """Read results: one row per cell.

    Args:
        path: a run folder, a cells folder, one cell file, or a folder of run folders. Where the records are not there
            (raw records are not tracked), the report's tables/cells.csv, or a folder of reports.

    Returns:
        The columns of results/README.md; each metric has `<metric>`, `<metric>_low` and `<metric>_high`. Columns that
        an older table lacks are empty.

    Raises:
        ValueError: nothing there or a file that is not a record; the message names the path.
    """
    tables = find_cell_tables(Path(path))
    return read_cell_tables(tables) if tables else results_frame(analyse(read_runs(Path(path))))


def analyse(runs: Sequence[Run]) -> list[Cell]:
    """Compute the sums of every cell and find its baseline."""
    cells = []
    for run in runs:
        columns = [_settings(record, run.name) for record in run.cells]
        others = other_settings(columns, [record.config for record in run.cells])
        alone = [
            Cell(record, settings | {"other_settings": other}, _estimates(record))
            for record, settings, other in zip(run.cells, columns, others, strict=True)
        ]
        baselines: dict[str, Cell] = {}
        for cell in alone:
            if cell.is_baseline:
                baselines.setdefault(cell.context_key, cell)
        cells += [Cell(cell.record, cell.settings, cell.estimates, baselines.get(cell.context_key)) for cell in alone]
    return cells


def results_frame(cells: Sequence[Cell]) -> pd.DataFrame:
    """One row per cell with the columns of results/README.md."""
    num_positions = max((cell.estimates.sums.num_positions for cell in cells), default=0)
    columns = column_names(num_positions)
    return pd.DataFrame([_row(cell, num_positions) for cell in cells], columns=columns)


def _row(cell: Cell, num_positions: int) -> dict[str, Any]:
    estimates = cell.estimates
    row = dict(cell.settings) | {"baseline_cell_id": cell.baseline.record.cell_id if cell.baseline else ""}
    row |= {name: getattr(cell.record, name) for name in FROM_RECORD}
    row |= {"num_prompts": estimates.num_prompts, "fallbacks": "; ".join(cell.record.fallbacks)}
    row |= {name: int(estimates.total(name)) for name in COUNTS if name not in row}
    for position in range(1, num_positions + 1):
        for name in POSITION_COUNTS:
            row[f"{name}_{position}"] = int(estimates.total(f"{name}_{position}"))
    for name in [*estimates.names(), "speedup"]:
        row |= dict(zip(with_interval(name), cell.estimate(name), strict=True))
    return row


def _estimates(record: CellRecord) -> Estimates:
    setting = _Reader(record)
    return Estimates(
        cell_sums(record), int(setting("measurement.num_resamples")), float(setting("measurement.confidence"))
    )


def _settings(record: CellRecord, run: str) -> dict[str, Any]:
    """The settings columns of a cell, but for other_settings."""
    setting = _Reader(record)
    drafter = setting("drafter.kind")
    baseline = drafter == "none"
    guarantee = "lossless" if baseline else setting("guarantee")
    target_weights = _weights(record.config["target"])
    drafter_weights = _weights(record.config["drafter"]) if drafter_traits(drafter).has_model else ""
    # whatever the record's own labels say
    labels = [
        *record.labels,
        "" if guarantee == "lossless" else guarantee,
        weights_label(target_weights, drafter_weights),
    ]
    decoding = ("temperature", "top_k", "top_p", "min_p", "max_new_tokens", "ignore_eos")
    return {
        "run": run,
        "cell_id": record.cell_id,
        "target": setting("target.name"),
        "target_weights": target_weights,
        "drafter": drafter,
        "drafter_path": setting("drafter.path") or record.config["drafter"].get("shape") or "",
        "drafter_weights": drafter_weights,
        "num_speculative_tokens": 0 if baseline else setting("drafting.num_speculative_tokens"),
        "draft_sampling": "" if baseline else setting("draft_sampling"),
        **_draft_cache(record),
        "verification": "" if baseline else _verification(setting("verification")),
        "guarantee": guarantee,
        "labels": "; ".join(dict.fromkeys(label for label in labels if label)),
        **{name: setting(f"decoding.{name}") for name in decoding},
        "workload": _workload(setting("workload")),
        "constraint": _constraint(record.config.get("constraint", {})),
        "prompt_tokens": setting("workload").get("prompt_tokens") or 0,
        "max_concurrency": setting("backend.max_concurrency"),
        "device": setting("device"),
        "dtype": setting("dtype"),
        "seed": setting("seed"),
    }


def _draft_cache(record: CellRecord) -> dict[str, str]:
    """Type of the draft-logit cache and what is drawn from; records that do not name them are of the drafter's own."""
    if not SettingsView.of_record(record.config).has_draft_cache:
        return {"draft_cache_dtype": "", "drawn_from": ""}
    drafting = record.config["drafting"]
    dtype = drafting.get("cache_dtype", "auto")
    return {
        "draft_cache_dtype": _Reader(record)("dtype") if dtype == "auto" else dtype,
        "drawn_from": drafting.get("drawn_from", "stored"),
    }


@dataclass(frozen=True)
class _Reader:
    """Reads `group.name` from a record's configuration."""

    record: CellRecord

    def __call__(self, name: str) -> Any:
        value: Any = self.record.config
        for part in name.split("."):
            if not isinstance(value, Mapping) or part not in value:
                raise ValueError(f"cell {self.record.cell_id}: its configuration lacks {name}; run the cell again")
            value = value[part]
        return value


def _verification(config: Mapping[str, Any]) -> str:
    """The method, with the parameters that it uses; a profile stands for its rates."""
    method = config["method"]
    given = {name: config.get(name) for name in parameters_of(method)}
    if given.get("profile"):
        del given["synthetic_rates"]
    text = ", ".join(f"{name}={_plain(value)}" for name, value in given.items() if value not in (None, []))
    return f"{method}({text})" if text else method


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "/".join(f"{item:g}" for item in value) if isinstance(value, list) else f"{value:g}"


def _weights(config: Mapping[str, Any]) -> str:
    """Records of the time before random weights do not name the source: it was a checkpoint."""
    return str(config.get("weights", Weights.checkpoint.value))


def _constraint(config: Mapping[str, Any]) -> str:
    """The policy with what it applies to; nothing in records of the time before constraints."""
    if config.get("policy") is None:
        return ""
    return f"{config['policy']} ({config['parser']}, {config['kind']})"


def _workload(config: Mapping[str, Any]) -> str:
    if config.get("dataset"):
        return str(config["dataset"])
    if config.get("path"):
        path = Path(config["path"])
        return "/".join(part for part in (path.parent.name, path.name) if part)
    return "builtin"
