"""The plan that runs the cells of some records again, from the settings that the records hold.

The files in conf/ take no part: they may have changed since. This module does not know where records lie.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from harness.config.cell import UNIONS, CellConfig
from harness.records.schema import CellRecord
from harness.records.shared_cores import beside_other_workers
from harness.runner.plan.run_plan import RunPlan
from harness.runner.plan.typed_sections import recorded_member, root_schema, typed_section


def recorded_cell(record: CellRecord) -> CellConfig:
    """The settings of a recorded cell as typed objects, with device, data type, fused and graphs as they were found.

    Settings that an older record does not know have their default.

    Raises:
        ValueError: the record holds a setting that this version does not have, or a value that it refuses.
    """
    sections: dict[str, Any] = {
        item.name: record.config[item.name] for item in fields(CellConfig) if item.name in record.config
    }
    members = {name: sections.pop(name) for name in UNIONS if name in sections}
    try:
        found = OmegaConf.merge(OmegaConf.structured(root_schema(CellConfig)), OmegaConf.create(sections))
        assert isinstance(found, DictConfig)
        parts = {name: typed_section(name, found[name]) for name in sections}
        return CellConfig(**parts, **{name: recorded_member(UNIONS[name], item) for name, item in members.items()})
    except (OmegaConfBaseException, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"cell {record.cell_id}: expected settings that this version takes, found others ({reason}); check out the "
            "version that its provenance names"
        ) from error


def recorded_plan(records: Sequence[CellRecord], manifest: Mapping[str, Any], folder: Path, command: str) -> RunPlan:
    """The cells of a recorded run, in an order in which they can be run.

    Args:
        records: of the run.
        manifest: its manifest; empty where there is none.
        folder: where the new run leaves its results.
        command: the command line that asks for it.
    """
    cells = [recorded_cell(record) for record in records]
    targets = [cell.target for cell in cells]
    ordered = sorted(cells, key=lambda cell: (targets.index(cell.target), not cell.is_baseline))
    shared = [text for text in records[0].fallbacks if all(text in record.fallbacks for record in records)]
    # of the workers of the run, not of what it asked for
    beside = beside_other_workers(shared)
    name = manifest.get("name") or folder.name
    return RunPlan(
        name=name,
        title=manifest.get("title") or name,
        cells=tuple(ordered),
        skipped=tuple((item["cell"], item["reason"]) for item in manifest.get("skipped", ())),
        folder=folder,
        command=command,
        shows=manifest.get("shows", ""),
        does_not_show=manifest.get("does_not_show", ""),
        reference=manifest.get("reference"),
        warnings=tuple(text for text in shared if text not in beside),
    )
