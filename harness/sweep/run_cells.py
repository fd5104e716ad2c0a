"""Run the cells of a plan: one loaded target for all of them, the arms interleaved, every finished cell written.

Cells that are to be compared (same target, decoding, workload and backend: the baseline, every drafter, depth and
method) form a group and run the same conversations. The conversations are split into blocks; the cells take turns block
by block, forwards in one block and backwards in the next, so that drift of the machine meets all arms alike. What a
turn leaves is kept at once, and what earlier sessions have kept is not run again. A cell is written when its last block
is done. A cell that raises an error is written as failed, and the others of its group go on.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from harness.backends.backend import backend_class
from harness.compose.run_plan import RunPlan
from harness.records.fault_points import reached
from harness.records.files import write_atomically, write_cell
from harness.records.runs import CELLS
from harness.records.schema import SCHEMA_VERSION, CellRecord
from harness.settings.cell import CellConfig
from harness.settings.guarantee import RANDOM_WEIGHTS, labels
from harness.settings.identity import key_without, plain_values
from harness.settings.models import Weights
from harness.settings.sections import CacheDtype
from harness.settings.usage import normal_form
from harness.sweep.arm import Arm
from harness.sweep.failures import DeviceLostError, device_is_lost, failed_record, failure_of
from harness.sweep.progress import Progress
from harness.sweep.turns import comparable_groups, interleave
from harness.workload.conversations import Conversation, conversations, fingerprint, load_prompts


def run_cells(plan: RunPlan, folder: Path, progress: Progress, finished: list[str]) -> None:
    """Run every cell of a plan and write its records and the manifest to `folder`.

    Args:
        plan: the cells.
        folder: gets cells/ and run.json; an older run.json stays until this run has finished something.
        progress: told of every finished request.
        finished: the id of each finished cell is appended, so that the caller knows them after an interruption too.

    Raises:
        ValueError: two cells are one on this machine, or a data set does not fit: nothing was run.
        DeviceLostError: after an error on the GPU; what was finished before is kept.
    """
    refuse_repeated(plan.cells)
    groups = comparable_groups(plan.cells)
    workloads = [_play(group[0]) for group in groups]
    run = _Run(plan, folder, progress, finished)
    progress.start(
        sum(
            len(group) * sum(len(item.prompt.turns) for item in played)
            for group, played in zip(groups, workloads, strict=True)
        )
    )
    num_before, last = 0, None
    for group, played in zip(groups, workloads, strict=True):
        target = group[0].target
        if target != last:
            what = "drawing random weights of" if target.weights is Weights.random else "loading"
            progress.note(
                f"{what} {target.name}; on a GPU the first turn of a cell also compiles and captures its steps"
            )
        last = target
        run.group(group, played, num_before)
        num_before += len(group)
    progress.finish()


@dataclass
class _Run:
    """A run under way."""

    plan: RunPlan
    folder: Path
    progress: Progress
    finished: list[str]
    places: dict[str, int] = field(default_factory=dict)
    """Place in the plan of each finished cell, by its id."""
    shared: dict[str, Any] = field(default_factory=dict)
    """What the cells of one kind of backend share, by kind."""
    session: str = field(default_factory=lambda: secrets.token_hex(4))
    """Names this process in the blocks that it runs."""
    started: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    def group(self, cells: Sequence[CellConfig], played: Sequence[Conversation], num_before: int) -> None:
        """Run the cells of one group, interleaved, and write each as soon as it is done or has failed."""
        arms = [Arm(cell, num_before + index, self.session) for index, cell in enumerate(cells)]
        prompts = fingerprint(item.prompt for item in played if item.sample == 0)
        backend = backend_class(cells[0].backend.kind)
        with self._failing(arms, played):
            shared = self._shared(cells[0].backend.kind)
        for arm in _going_on(arms):
            self._show(arm)
            with self._failing([arm], played):
                arm.backend = backend(arm.cell, shared)
                arm.find_checkpoint(self.folder, prompts, self.plan.resume, self.progress.note)
        self._leave_out_kept(arms, played)
        if _going_on(arms):
            with self._failing(_going_on(arms), played):
                backend.prepare_together([arm.backend for arm in _going_on(arms)], played)
        for turn in interleave(len(arms), played, cells[0].measurement.num_blocks):
            arm, record = arms[turn.arm], None
            if not arm.goes_on:
                continue
            self._show(arm)
            with self._failing([arm], played):
                arm.play(turn, partial(self._advance, arm))
                record = arm.record(prompts, self.plan.warnings) if turn.is_last else None
            reached("a turn is played")
            if record is not None:
                arm.write(record, self.folder / CELLS)
                self._list(record.cell_id, arm.place)

    def _leave_out_kept(self, arms: Sequence[Arm], played: Sequence[Conversation]) -> None:
        """List what earlier sessions have finished, and take what they have done out of the work that is left."""
        num_requests = sum(len(item.prompt.turns) for item in played)
        finished = [arm for arm in arms if arm.finished_id is not None]
        for arm in arms:
            arm.num_told = num_requests if arm in finished else arm.num_kept
            self.progress.leave_out(arm.num_told)
        for arm in finished:
            self._list(str(arm.finished_id), arm.place)
        num_kept = sum(arm.num_kept for arm in arms)
        if finished or num_kept:
            self.progress.note(
                f"of {len(arms)} cells {len(finished)} were finished before, and {num_kept} requests of the others"
            )

    def _shared(self, kind: str) -> Any:
        """What the cells of one kind of backend share."""
        if kind not in self.shared:
            self.shared[kind] = backend_class(kind).Shared()
        return self.shared[kind]

    @contextmanager
    def _failing(self, arms: Sequence[Arm], played: Sequence[Conversation]) -> Iterator[None]:
        """Write cells as failed that cannot go on after an error; the others do.

        Raises:
            DeviceLostError: nothing can go on in this process.
        """
        try:
            yield
        except Exception as error:
            failure = failure_of(error)
            for arm in arms:
                arm.backend, arm.has_failed = None, True
                self.progress.note(f"failed: {label(arm.cell)}: {failure.reason}")
                num_requests = sum(len(item.prompt.turns) for item in played)
                self.progress.leave_out(num_requests - arm.num_told)
                self._write(failed_record(arm.cell, failure, played, self.plan.warnings), arm.place)
            if device_is_lost():
                raise DeviceLostError(
                    f"the GPU takes no more work from this process after {failure.reason}; run the same command again"
                ) from error

    def _write(self, record: CellRecord, place: int) -> None:
        write_cell(record, self.folder / CELLS)
        self._list(record.cell_id, place)

    def _list(self, cell_id: str, place: int) -> None:
        """A cell is finished, or has failed."""
        if cell_id not in self.finished:
            self.finished.append(cell_id)
        self.places[cell_id] = place
        self._write_manifest()
        reached("the manifest is written")

    def _show(self, arm: Arm) -> None:
        self.progress.cell(label(arm.cell), arm.place, len(self.plan.cells))

    def _advance(self, arm: Arm, num_tokens: int) -> None:
        arm.num_told += 1
        self.progress.advance(1, num_tokens)

    def _write_manifest(self) -> None:
        content = {
            "schema_version": SCHEMA_VERSION,
            "name": self.plan.name,
            "title": self.plan.title,
            "shows": self.plan.shows,
            "does_not_show": self.plan.does_not_show,
            "reference": self.plan.reference,
            "command": self.plan.command,
            "started": self.started,
            # arms finish in the order of their last block, which says nothing to a reader
            "cells": sorted(self.finished, key=lambda cell_id: self.places[cell_id]),
            "num_cells": len(self.plan.cells),
            "skipped": [{"cell": dict(values), "reason": reason} for values, reason in self.plan.skipped],
        }
        write_atomically(self.folder / "run.json", json.dumps(content, indent=1).encode())


def _going_on(arms: Sequence[Arm]) -> list[Arm]:
    return [arm for arm in arms if arm.goes_on]


def _play(cell: CellConfig) -> list[Conversation]:
    return conversations(load_prompts(cell.workload, cell.seed), cell.workload, cell.seed)


def label(cell: CellConfig) -> str:
    """A cell in a few words, for the progress display."""
    weights = "".join(f" [{item}]" for item in labels(cell) if RANDOM_WEIGHTS in item)
    if cell.is_baseline:
        return f"baseline T={cell.decoding.temperature:g}{weights}"
    num_tokens, method = cell.drafting.num_speculative_tokens, cell.verification.method.value
    cache = "" if cell.drafting.cache_dtype is CacheDtype.auto else f" {cell.drafting.cache_dtype.value}"
    cache += " unrounded" if cell.draws_unrounded else ""
    return f"{cell.drafter.kind.value} K={num_tokens} T={cell.decoding.temperature:g} {method}{cache}{weights}"


def refuse_repeated(cells: Sequence[CellConfig]) -> None:
    """Raise ValueError where two cells of a plan are one here: the second record would take the place of the first."""
    first: dict[str, CellConfig] = {}
    for cell in cells:
        found = backend_class(cell.backend.kind).resolved(cell)
        other = first.setdefault(key_without(normal_form(found)), cell)
        if other is not cell:
            raise ValueError(
                f"two cells differ in {' and '.join(_differences(other, cell))} only, which makes no difference "
                f"on {found.backend.device} with the rest of the settings, so that they are one; give one value, or "
                "what makes it count (rejection-lab run --help)"
            )


def _differences(one: CellConfig, other: CellConfig) -> list[str]:
    """Every setting in which two cells differ, with both values."""
    first, second = plain_values(asdict(one)), plain_values(asdict(other))
    return [
        f"{section}.{name} ({json.dumps(value)}, {json.dumps(second[section][name])})"
        for section, values in first.items()
        if isinstance(values, dict)
        for name, value in values.items()
        if value != second[section][name]
    ]
