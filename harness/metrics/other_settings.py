"""Settings in which cells of one run differ although their columns are the same, so that no two rows look alike.

This module knows the settings of records; it does not know tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.metrics.flat_settings import distinct_values, flattened
from harness.settings.identity import key_without
from harness.settings.models import DRAFTERS
from harness.settings.usage import used_settings

_IN_NAMES = {
    f"drafter.{name}" for traits in DRAFTERS.values() for name in traits.settings if f"{{{name}}}" in traits.name
}
"""No column holds these, but the name of the drafter does."""


def other_settings(columns: Sequence[Mapping[str, Any]], configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """What tells the cells of a run apart beside their columns.

    Args:
        columns: the settings columns of each cell.
        configs: of the records of the same cells, sections as mappings.

    Returns:
        For each cell `section.name=value` of every setting in which cells with the same columns differ, as far as the
        cell uses it, parted by commas; empty where there is none.
    """
    used = [used_settings(config) for config in configs]
    alike: dict[str, list[dict[str, Any]]] = {}
    for shown, config in zip(columns, used, strict=True):
        alike.setdefault(key_without(shown, "cell_id"), []).append(config)
    differing = {
        name: None
        for group in alike.values()
        for name, values in distinct_values(group).items()
        if len(values) > 1 and name not in _IN_NAMES
    }
    texts = [flattened(config) for config in used]
    return [", ".join(f"{name}={text[name]}" for name in differing if name in text) for text in texts]
