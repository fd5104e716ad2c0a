"""Failed cells beside those that they were to be compared with; which settings these share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.config.identity import key_without
from harness.records.schema import CellRecord

AXES = ("drafter", "drafting", "verification", "constraint.drafts", "measurement", "draft_sampling", "guarantee")
"""Settings in which a cell may differ from its baseline."""
_FOUND = ("device", "dtype", "fused", "graphs")
"""Settings of the backend that a run finds out, the first two also beside the backend's section."""


def with_found_settings(records: Sequence[CellRecord]) -> list[CellRecord]:
    """The records of a run; a cell that failed before it had found out settings of its backend has those that the cells
    found with which it was to be compared, so that it stands among them."""
    found: dict[str, Mapping[str, Any]] = {}
    for record in records:
        if not record.has_failed:
            found.setdefault(_group(record.config), record.config)
    return [
        replace(record, config=_filled(record.config, found.get(_group(record.config), record.config)))
        if record.has_failed
        else record
        for record in records
    ]


def _group(config: Mapping[str, Any]) -> str:
    return key_without(config, *AXES, *_FOUND[:2], *(f"backend.{name}" for name in _FOUND))


def _filled(config: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    backend = {**config["backend"], **{name: found["backend"][name] for name in _FOUND if name in found["backend"]}}
    return {**config, **{name: found[name] for name in _FOUND[:2] if name in found}, "backend": backend}
