"""Settings in which cells of one run differ although no column shows them, so that no two rows look the same.

This module knows the settings of records; it does not know tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.plain_text import flattened
from harness.used_settings import used_settings

_SHOWN_SECTIONS = ("target", "drafter", "drafting", "verification", "decoding")
"""Columns, or the names that are made of them, hold these."""
_SHOWN = (
    *("workload.path", "workload.dataset", "workload.prompt_tokens"),
    *("constraint.policy", "constraint.parser", "constraint.kind"),
    *("backend.max_concurrency", "backend.device", "backend.dtype"),
    *("draft_sampling", "guarantee", "device", "dtype", "seed"),
)
_FOLLOWING = ("workload.layout",)
"""Comes with a path."""


def other_settings(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """What tells the cells of a run apart beside the columns.

    Args:
        configs: of the records of one run, sections as mappings.

    Returns:
        For each of them `section.name=value` of every such setting that it uses, parted by commas; empty where all
        cells that use a setting agree.
    """
    cells = [_unshown(config) for config in configs]
    values: dict[str, set[str]] = {}
    for cell in cells:
        for name, text in cell.items():
            values.setdefault(name, set()).add(text)
    differing = [name for name, texts in values.items() if len(texts) > 1]
    return [", ".join(f"{name}={cell[name]}" for name in differing if name in cell) for cell in cells]


def _unshown(config: Mapping[str, Any]) -> dict[str, str]:
    hidden = (*_SHOWN_SECTIONS, "measurement")
    kept = {section: value for section, value in used_settings(config).items() if section not in hidden}
    return {name: text for name, text in flattened(kept).items() if name not in (*_SHOWN, *_FOLLOWING)}
