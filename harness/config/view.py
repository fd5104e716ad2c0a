"""The settings of a cell as plain values, and what follows from them, alike for composed cells and for records.

A record may be older than a setting. This module does not know which cells use which setting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any

from harness.config.cell import UNIONS, CellConfig
from harness.config.drafter import DrafterTraits, drafter_traits
from harness.config.drafting import cache_rounds
from harness.config.imported import ImportPath
from harness.config.models import Weights
from kernels.methods import DraftSampling


def plain_values(value: Any) -> Any:
    """Settings as plain JSON values: enums by value, tuples as lists, a union as its tag beside the fields."""
    if isinstance(value, Enum | ImportPath):
        return value.value
    for union in UNIONS.values():
        if isinstance(value, union.kind):
            name, values = union.parts(value)
            return {union.tag: name} | plain_values(values)
    if is_dataclass(value):
        return {item.name: plain_values(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_values(item) for item in value]
    return value


@dataclass(frozen=True)
class SettingsView:
    """What decides which settings a cell uses, as plain values."""

    value: Callable[[str], Any]
    """Key -> the cell's setting; None where a record is older than it."""
    draft_sampling: str | None
    """With auto resolved."""
    device: str | None
    """As configured, or as a run found it."""
    dtype: str | None
    """The same."""

    @classmethod
    def of_cell(cls, cell: CellConfig) -> SettingsView:
        """The view of a composed cell."""
        found = {"draft_sampling": cell.draft_sampling.value}
        found |= {"device": cell.backend.device, "dtype": cell.backend.dtype}
        return cls.of_record(plain_values(cell) | found)

    @classmethod
    def of_record(cls, config: Mapping[str, Any]) -> SettingsView:
        """The view of a record's settings, sections as mappings."""

        def value(key: str) -> Any:
            section, _, name = key.partition(".")
            return config.get(section, {}).get(name)

        return cls(value, config.get("draft_sampling"), config.get("device"), config.get("dtype"))

    @property
    def has_network(self) -> bool:
        """Whether the drafter is a network of ours, of its own weights or of its target's."""
        return self._drafter.has_network

    @property
    def has_draft_cache(self) -> bool:
        """Whether the logits that drafts are drawn from are cached."""
        return not self._drafter.is_one_hot and self.draft_sampling != DraftSampling.greedy.value

    @property
    def rounds_draft_logits(self) -> bool:
        """Whether that cache rounds them."""
        return self.has_draft_cache and cache_rounds(self.value("drafting.cache_dtype"), self.dtype)

    @property
    def drafts_tree(self) -> bool:
        """Whether drafts are trees."""
        return self.value("drafting.tree") is not None

    @property
    def is_served(self) -> bool:
        """Whether a server generates."""
        return self.value("backend.kind") == "server"

    @property
    def sets_context(self) -> bool:
        """Whether a server is started that is told how many tokens its requests may have."""
        return self.value("server.url") is None and "{context}" in (self.value("server.command") or "")

    @property
    def takes_checkpoint(self) -> bool:
        """Whether the drafter is read from a folder or sized by one, and not by its target alone."""
        is_sized_by_target = self._drafter.in_target and self.value("drafter.weights") == Weights.random.value
        return self._drafter.has_model and not is_sized_by_target

    @property
    def reads_drafter_files(self) -> bool:
        """Whether the drafter is read from files of the user's."""
        folder = "target.path" if self._drafter.in_target and self.value("drafter.path") is None else "drafter.path"
        return self.takes_checkpoint and self.value(folder) is not None

    @property
    def _drafter(self) -> DrafterTraits:
        return drafter_traits(self.value("drafter.kind"))

    @property
    def may_use_graphs(self) -> bool:
        """Whether its steps have fixed sizes, or will have if a GPU is found."""
        graphs = self.value("backend.graphs")
        return self.device != "cpu" if graphs is None else bool(graphs)
