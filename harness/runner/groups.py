"""Which cells of a plan run together, and on which conversations; does not know how they run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from harness.config.backend import OF_LOCAL
from harness.config.cell import CellConfig
from harness.config.identity import key_without
from harness.config.usage import unused_settings
from harness.config.view import SettingsView
from harness.workload.conversations import Conversation, conversations, load_prompts

ARMS_DIFFER_IN = ("drafter", "drafting", "verification", "constraint", "measurement", "backend.kind", "server")
"""Sections and settings in which the cells of a group may differ."""


@dataclass(frozen=True)
class Group:
    """Cells that are compared with each other."""

    first_place: int
    """Of the first cell; cells are counted in the order of the groups."""
    cells: Sequence[CellConfig]

    @cached_property
    def played(self) -> list[Conversation]:
        """The conversations that each cell plays; ValueError if the data set does not fit."""
        workload, seed = self.cells[0].workload, self.cells[0].seed
        return conversations(load_prompts(workload, seed), workload, seed)

    @property
    def num_requests_per_cell(self) -> int:
        """One for each turn of the conversations."""
        return sum(len(item.prompt.turns) for item in self.played)


def groups_of(cells: Sequence[CellConfig]) -> list[Group]:
    """The groups of a plan, in its order."""
    groups: list[Group] = []
    for members in comparable_groups(cells):
        groups.append(Group(sum(len(group.cells) for group in groups), members))
    return groups


def comparable_groups(cells: Sequence[CellConfig]) -> list[list[CellConfig]]:
    """The cells of each target, decoding, workload and backend settings, in the order of the plan.

    What generates, an engine of ours or a server, may differ: engines that are compared take turns too.
    """
    local = [cell for cell in cells if not cell.is_served]
    hosts: dict[frozenset[str], dict[str, CellConfig]] = {}
    groups: dict[str, list[CellConfig]] = {}
    for cell in cells:
        host = cell
        if cell.is_served:
            # settings of this engine's own do not keep a server from its group
            unused = frozenset(unused_settings(SettingsView.of_cell(cell))) | OF_LOCAL
            if unused not in hosts:
                hosts[unused] = {key_without(item, *ARMS_DIFFER_IN, *unused): item for item in reversed(local)}
            host = hosts[unused].get(key_without(cell, *ARMS_DIFFER_IN, *unused), cell)
        groups.setdefault(key_without(host, *ARMS_DIFFER_IN), []).append(cell)
    return list(groups.values())
