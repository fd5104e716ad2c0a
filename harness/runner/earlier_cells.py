"""What earlier sessions left of the cells of a plan, told from its folder alone: no worker, no torch, nothing changed.

A cell is found by the key of its checkpoint. Where something that decides the key or the drift is not known here, such
as the weights of a Hugging Face id, what the checkpoint says stands for it, and the answer is not sure: a worker looks
again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from harness.config.backend import BACKEND, Local
from harness.config.cell import CellConfig
from harness.config.identity import determinants
from harness.models.hub_snapshot import hub_snapshot
from harness.records.files import SUFFIX, identity
from harness.records.finished import CHECKPOINTS, PARTS, digest_of, finished_of
from harness.records.parts import settled
from harness.records.provenance import measured_with, provenance
from harness.records.runs import CELLS
from harness.records.without_torch import device_here
from harness.runner.cell_checkpoint import checkpoint_content
from harness.runner.cell_record import recorded_config
from harness.runner.cpu_threads import VARIABLE, choose_threads
from harness.runner.drift import drift_of
from harness.runner.groups import Group, groups_of
from harness.runner.plan.run_plan import RunPlan
from harness.runner.weights_here import sources_here, weights_here
from harness.workload.conversations import fingerprint

NAMED_KINDS = ("local", "server")
"""Kinds of backend whose settings are resolved here as they do it; those of the user's own are asked by a worker."""


@dataclass(frozen=True)
class EarlierCell:
    """What there is of a cell."""

    num_requests: int
    """That are kept."""
    cell_id: str | None = None
    """Of its record, if it is finished or has failed."""
    has_failed: bool = False
    differing: tuple[tuple[str, str, str], ...] = ()
    """What it was measured with that is not the same here: name, found, expected."""
    is_sure: bool = False
    """Whether a worker would find the same."""

    @property
    def is_left_alone(self) -> bool:
        """Whether a worker would have nothing to do for it."""
        return self.is_sure and self.cell_id is not None and not self.differing


@dataclass(frozen=True)
class _Kept:
    """A checkpoint."""

    key: str
    num_requests: int
    models: Mapping[str, str]
    provenances: Sequence[Mapping[str, Any]]
    threads_asked: str | None
    cell_id: str | None
    config: Mapping[str, Any] | None
    sources: Mapping[str, str] = field(default_factory=dict)


class EarlierCells:
    """What there is of the cells of a plan."""

    def __init__(self, plan: RunPlan, *, with_begun: bool = True) -> None:
        """
        Args:
            plan: of the run.
            with_begun: also read what there is of cells that are not finished, which may be much.
        """
        self._folder = plan.folder
        self._device = device_here()
        # asked once for all cells
        self._snapshot = cache(hub_snapshot)
        self._kept = list(_kept_cells(plan.folder, with_begun))
        self._here = provenance()
        choose_threads(plan.cells)

    def found(self, group: Group) -> dict[int, EarlierCell]:
        """What there is of the cells of a group, by place; those of which nothing is kept are left out.

        Raises:
            ValueError: the data set does not fit.
        """
        prompts = fingerprint(item.prompt for item in group.played if item.sample == 0)
        found = {}
        for place, cell in enumerate(group.cells, start=group.first_place):
            if cell.backend.kind in NAMED_KINDS and not cell.imported:
                earlier = self._found(cell, prompts, group.num_requests_per_cell)
                if earlier is not None:
                    found[place] = earlier
        return found

    def _found(self, cell: CellConfig, prompts: str, num_requests: int) -> EarlierCell | None:
        weights = weights_here(cell, self._snapshot)
        best: EarlierCell | None = None
        for resolved in self._resolved(cell):
            for failed in (identity(determinants(resolved, known)) for known in (prompts, None)):
                if (self._folder / CELLS / f"{failed}{SUFFIX}").is_file():
                    return EarlierCell(0, failed, has_failed=True, is_sure=self._device is not None)
            for kept in self._kept:
                models = kept.models if weights is None else weights
                if kept.key != identity(determinants(resolved, prompts, models)):
                    continue
                unknown = self._unknown(cell, kept)
                differing = drift_of(kept.provenances, self._measured_with(cell, kept), unknown)
                is_sure = not unknown and (weights is not None or self._draws_alike(cell, kept))
                if kept.config is not None:
                    # settings that determine no result may be others now
                    is_sure &= _has_settings(cell, kept.config) and bool(kept.models)
                whole = num_requests if kept.cell_id is not None else kept.num_requests
                earlier = EarlierCell(whole, kept.cell_id, differing=differing, is_sure=is_sure)
                # the one that a worker takes: of those that were measured alike the one written last
                if best is None or not differing or best.differing:
                    best = earlier
        return best

    def _draws_alike(self, cell: CellConfig, kept: _Kept) -> bool:
        """Whether random weights would be those of a record: the same code draws them after the same."""
        has_commit = all(item.get("git") for item in (self._here, *kept.provenances))
        return has_commit and bool(kept.sources) and kept.sources == sources_here(cell, self._snapshot)

    def _resolved(self, cell: CellConfig) -> Iterator[CellConfig]:
        """The cell with its open settings filled in: in every way where the device is not known."""
        if not isinstance(cell.backend, Local):
            yield cell
            return
        name = cell.backend.device.partition(":")[0]
        known = (self._device.type,) if self._device is not None else ("cpu", "cuda")
        for device in known if name == "auto" else (name,):
            yield replace(cell, backend=cell.backend.on(device))

    def _unknown(self, cell: CellConfig, kept: _Kept) -> tuple[str, ...]:
        """Names of what is not known without torch."""
        device = () if self._device is not None else ("device",)
        asked = os.environ.get(VARIABLE)
        same_host = any(item.get("cpu") == self._here["cpu"] for item in kept.provenances)
        is_known = (asked or "").isdecimal() or (asked == kept.threads_asked and same_host and kept.cell_id is not None)
        return device if is_known else (*device, "threads of torch")

    def _measured_with(self, cell: CellConfig, kept: _Kept) -> dict[str, str]:
        asked = os.environ.get(VARIABLE) or ""
        threads = int(asked) if asked.isdecimal() else kept.provenances[-1].get("torch_threads")
        gpu = None if self._device is None or self._device.gpu is None else {"name": self._device.gpu}
        return measured_with({**self._here, "torch_threads": threads, "gpu": gpu})


def earlier_of(plan: RunPlan) -> dict[int, EarlierCell]:
    """What there is of the cells of a plan, by their identity in this process; downloads nothing."""
    earlier, found = EarlierCells(plan), dict[int, EarlierCell]()
    for group in groups_of(plan.cells):
        if group.cells[0].workload.dataset is None:
            with suppress(ValueError, OSError):
                found |= {
                    id(group.cells[place - group.first_place]): cell for place, cell in earlier.found(group).items()
                }
    return found


def cells_left(plan: RunPlan) -> list[CellConfig]:
    """The cells that a run would work on, or may."""
    is_there = (plan.folder / CHECKPOINTS).is_dir() or (plan.folder / CELLS).is_dir()
    if not is_there or plan.resume.is_fresh:
        return list(plan.cells)
    earlier = earlier_of(plan)
    return [cell for cell in plan.cells if not is_done(plan, earlier.get(id(cell)))]


def goes_on(plan: RunPlan, found: EarlierCell) -> bool:
    """Whether a run goes on with what there is of a cell."""
    return not found.differing or plan.resume.accepts_drift


def is_done(plan: RunPlan, found: EarlierCell | None) -> bool:
    """Whether the run leaves the cell as it is."""
    if found is None or found.cell_id is None:
        return False
    return not plan.resume.retries_failed if found.has_failed else goes_on(plan, found)


def _has_settings(cell: CellConfig, recorded: Mapping[str, Any]) -> bool:
    """Whether a record has the settings of a cell, also those that determine no result; not where it is damaged, or of
    another version."""
    with suppress(KeyError, TypeError, ValueError):
        return recorded == recorded_config(cell, replace(cell, backend=BACKEND.of_plain(recorded["backend"])))
    return False


def _kept_cells(folder: Path, with_begun: bool) -> Iterator[_Kept]:
    """The checkpoints of a folder that a worker would use, the one written last at the end."""
    for path in sorted((folder / CHECKPOINTS).glob(f"*{PARTS}"), key=lambda path: path.stat().st_mtime):
        # a worker names what is damaged
        with suppress(ValueError, OSError):
            key, finished = path.name.partition("-")[0], finished_of(path)
            if finished is not None:
                if all(digest_of(folder / CELLS / Path(name).name) == end for name, end in finished.files.items()):
                    yield _Kept(
                        key,
                        0,
                        finished.models,
                        finished.provenances,
                        finished.threads_asked,
                        finished.cell_id,
                        finished.config,
                        finished.sources,
                    )
            elif with_begun and (parts := checkpoint_content(path)[0]):
                num_requests = sum(part.block.num_requests for part in settled(parts))
                provenances = [part.provenance for part in parts]
                yield _Kept(key, num_requests, parts[-1].facts["models"], provenances, None, None, None)
