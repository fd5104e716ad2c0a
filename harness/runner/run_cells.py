"""Run the cells of a plan: one loaded target for all of them, the arms interleaved, every finished cell written.

Cells that are to be compared (same target, decoding, workload and backend settings: the baseline, every drafter, depth
and method, on this engine and on servers) form a group and run the same conversations. The conversations are split into
blocks; the cells take turns block by block, forwards in one block and backwards in the next, so that drift of the
machine meets all arms alike. What a turn leaves is kept at once, and what earlier sessions have kept is not run again.
A cell is written when its last block is done. A cell that raises an error is written as failed, and the others of its
group go on.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from harness.backends.backend import backend_class
from harness.config.cell import CellConfig
from harness.config.models import TargetConfig, Weights
from harness.records.fault_points import reached
from harness.records.files import SUFFIX, UnwritableError, write_cell
from harness.records.runs import CELLS
from harness.records.schema import Failure
from harness.runner.arm import Arm, Turn
from harness.runner.cell_label import failed_before, label, label_of_several
from harness.runner.drift import Drift
from harness.runner.failures import DeviceLostError, device_is_lost, failed_id, failed_record, failure_of
from harness.runner.groups import Group, groups_of
from harness.runner.judge import judged
from harness.runner.manifest import Manifest
from harness.runner.plan.run_plan import Resume, RunPlan
from harness.runner.progress import Progress
from harness.runner.refuse_cells import refuse_repeated
from harness.workload.conversations import Conversation, fingerprint


def run_cells(plan: RunPlan, folder: Path, progress: Progress, finished: list[str]) -> None:
    """Run every cell of a plan and write its records and the manifest to `folder`.

    Args:
        plan: the cells.
        folder: gets cells/ and run.json; an older run.json stays until this run has finished something.
        progress: counts every finished request.
        finished: the id of each finished cell is appended, so that the caller knows them after an interruption too.

    Raises:
        ValueError: two cells are one on this machine, or a data set does not fit: nothing was run.
        DeviceLostError: after an error on the GPU; what was finished before is kept.
    """
    refuse_repeated(plan.cells)
    runner = CellRunner(plan, folder, progress, Manifest(plan, folder, finished).add)
    progress.start(sum(len(group.cells) * group.num_requests_per_cell for group in runner.groups))
    for group in runner.groups:
        runner.run_group(group)
    progress.finish()


@dataclass
class CellRunner:
    """Runs groups of a plan in this process, one after the other."""

    plan: RunPlan
    folder: Path
    progress: Progress
    finished: Callable[[int, str, bool], None]
    """Told the place and the id of every cell whose record is there, and whether the cell failed."""
    shared: dict[str, Any] = field(default_factory=dict)
    """What the cells of one kind of backend share, by kind."""
    session: str = field(default_factory=lambda: secrets.token_hex(4))
    """Names this process in the blocks that it runs."""
    target: TargetConfig | None = None
    """Of the group before."""
    _untold: dict[str, list[CellConfig]] = field(default_factory=dict)
    """Cells that have failed and of which nothing was said yet, by the reason."""
    _told: dict[str, str] = field(default_factory=dict)
    """Which cell failed first, in words, by the reason."""

    def __post_init__(self) -> None:
        self.groups = groups_of(self.plan.cells)
        # a group stays on one worker
        self._num_workers = min(len(self.plan.workers.devices), len(self.groups))

    def run_group(
        self, group: Group, failures: Mapping[int, Failure] = MappingProxyType({}), finished: Collection[int] = ()
    ) -> None:
        """Run the cells of one group, interleaved, and write each as soon as it is done or has failed.

        Args:
            group: the cells.
            failures: by place, of cells that are not run because a process died of them; others of the group go on
                where that left them.
            finished: places of cells that another worker of this run has finished, failed ones too.
        """
        cells, played = group.cells, list[Conversation]()
        self._announce(cells)
        arms = [
            Arm(cell, place, self.session, self._num_workers)
            for place, cell in enumerate(cells, start=group.first_place)
        ]
        with self._failing([arm for arm in arms if arm.place not in {*finished, *failures}], played):
            played = group.played
        self._leave_failed(arms, failures, finished, played)
        if not played:
            return
        prompts = fingerprint(item.prompt for item in played if item.sample == 0)
        for members in _by_kind(_going_on(arms)):
            self._make(members, played, prompts)
        self._tell_drift(arms)
        self._leave_out_kept(_not_failed(arms), played)
        self._tell_alone(arms)
        for members in _by_kind(_going_on(arms)):
            self._get_ready(members, played)
        for turn in interleave(len(arms), played, cells[0].measurement.num_blocks):
            arm = arms[turn.arm]
            if not arm.goes_on:
                continue
            self.progress.cell(label(arm.cell), arm.place, len(self.plan.cells))
            with self._failing([arm], played):
                arm.play(turn, self.progress)
                reached("a turn is played")
                if turn.is_last:
                    record = judged(arm.record(prompts, self.plan.warnings), arm.cell, played)
                    arm.write(record, self.folder / CELLS)
                    self.finished(arm.place, record.cell_id, False)

    def _leave_failed(
        self,
        arms: Sequence[Arm],
        failures: Mapping[int, Failure],
        finished: Collection[int],
        played: Sequence[Conversation],
    ) -> None:
        """Write those as failed that a process died of, and find those that failed before; see `run_group`."""
        recalled = []
        for arm in arms:
            if arm.place in failures and arm.place not in finished:
                self._fail(arm, failures[arm.place], played)
            elif played:
                # --retry-failed and --fresh mean earlier runs, not what this run has finished
                self._recall_failure(arm, Resume() if arm.place in finished else self.plan.resume, played)
                recalled += [arm.cell] if arm.has_failed and arm.place not in finished else []
        self._tell_failures()
        if recalled:
            self.progress.note(failed_before(recalled, len(self.plan.cells)))

    def _make(self, arms: Sequence[Arm], played: Sequence[Conversation], prompts: str) -> None:
        """Make the backends of arms of one kind, and find what earlier sessions have left of their cells."""
        backend = arms[0].cell.backend
        with self._failing(arms, played):
            if backend.kind not in self.shared:
                self.shared[backend.kind] = backend_class(backend).Shared()
        for arm in _going_on(arms):
            with self._failing([arm], played, tells=False):
                arm.backend = backend_class(backend)(arm.cell, self.shared[backend.kind])
                arm.find_checkpoint(self.folder, prompts, self.plan.resume, self.progress.note)
        self._tell_failures()

    def _get_ready(self, arms: Sequence[Arm], played: Sequence[Conversation]) -> None:
        """Get arms of one kind ready to take turns; those that do not alone either fail, and the others go on."""
        if not arms:
            return
        self.progress.at_stake([arm.place for arm in arms])
        error = _prepared(arms, played)
        if error is None:
            return
        alone = {} if device_is_lost(error) else {arm.place: _prepared([arm], played) for arm in arms}
        errors = {place: found for place, found in alone.items() if found is not None}
        if len(errors) in (0, len(arms)):
            with self._failing(arms, played):
                raise error
            return
        for arm in arms:
            with self._failing([arm], played, tells=False):
                if arm.place in errors:
                    raise errors[arm.place]
        self._tell_failures()
        self._get_ready(_going_on(arms), played)

    def _announce(self, cells: Sequence[CellConfig]) -> None:
        """Say what takes long before the first turn, where it differs from the group before."""
        target = cells[0].target
        if target != self.target and all(cell.is_served for cell in cells):
            what = "asking the server at" if cells[0].server.url else "a server has to start, which may take minutes:"
            self.progress.note(f"{what} {cells[0].server.url or target.name}")
        elif target != self.target:
            what = "drawing random weights of" if target.weights is Weights.random else "loading"
            self.progress.note(
                f"{what} {target.name}; on a GPU kernels are compiled and steps captured before a cell's first turn"
            )
        self.target = target

    def _tell_drift(self, arms: Sequence[Arm]) -> None:
        """Say once for all cells that it concerns what earlier sessions measured with and this one does not."""
        found: dict[Drift, list[CellConfig]] = {}
        for arm in arms:
            if arm.drift is not None:
                found.setdefault(arm.drift, []).append(arm.cell)
        for drift, cells in found.items():
            self.progress.note(drift.told(label_of_several(cells, len(arms))))

    def _leave_out_kept(self, arms: Sequence[Arm], played: Sequence[Conversation]) -> None:
        """List what earlier sessions have finished, and count what they have done."""
        num_requests = sum(len(item.prompt.turns) for item in played)
        finished = [arm for arm in arms if arm.finished_id is not None]
        for arm in arms:
            arm.num_told = num_requests if arm in finished else arm.num_kept
        self.progress.done_before(sum(arm.num_told for arm in arms))
        for arm in finished:
            self.finished(arm.place, str(arm.finished_id), False)
        num_kept = sum(arm.num_kept for arm in arms)
        if finished or num_kept:
            places = f"{arms[0].place + 1} to {arms[-1].place + 1}" if len(arms) > 1 else f"{arms[0].place + 1}"
            self.progress.note(
                f"of cells {places} of {len(self.plan.cells)}, {len(finished)} were finished before, and {num_kept} "
                "requests of the others"
            )

    def _tell_alone(self, arms: Sequence[Arm]) -> None:
        """Say which cells are about to be measured without their baseline beside them."""
        done = [arm.cell for arm in arms if arm.cell.is_baseline and arm.finished_id is not None]
        alone = [
            arm.cell
            for arm in arms
            if arm.goes_on and not arm.num_kept and not arm.cell.is_baseline
            if any(cell.backend == arm.cell.backend and cell.server == arm.cell.server for cell in done)
        ]
        if alone:
            self.progress.note(
                f"no speedup of {label_of_several(alone, len(arms))}: the baseline was finished before; --fresh "
                "measures them together"
            )

    @contextmanager
    def _failing(self, arms: Sequence[Arm], played: Sequence[Conversation], *, tells: bool = True) -> Iterator[None]:
        """Write cells as failed that cannot go on after an error; the others do.

        Args:
            arms: of the cells.
            played: their conversations.
            tells: whether it is said at once, or with others that fail of the same.

        Raises:
            DeviceLostError: nothing can go on in this process.
            UnwritableError: results cannot be written.
        """
        self.progress.at_stake([arm.place for arm in arms])
        try:
            yield
        except UnwritableError:
            # no fault of the cell, and its failure could not be written either
            raise
        except Exception as error:
            failure = failure_of(error)
            if device_is_lost(error):
                raise DeviceLostError(failure) from error
            for arm in arms:
                self._fail(arm, failure, played)
            if tells:
                self._tell_failures()

    def _tell_failures(self) -> None:
        """Say once for all cells that it concerns why they failed."""
        for reason, cells in self._untold.items():
            which, is_new = label_of_several(cells, len(self.plan.cells)), reason not in self._told
            first = self._told.setdefault(reason, label(cells[0]))
            self.progress.note(f"failed: {which}: {reason if is_new else f'as {first}'}")
        self._untold.clear()

    def _fail(self, arm: Arm, failure: Failure, played: Sequence[Conversation]) -> None:
        arm.backend, arm.has_failed = None, True
        self._untold.setdefault(failure.reason, []).append(arm.cell)
        self.progress.leave_out(sum(len(item.prompt.turns) for item in played) - arm.num_told)
        record = failed_record(arm.cell, failure, played, self.plan.warnings)
        write_cell(record, self.folder / CELLS)
        self.finished(arm.place, record.cell_id, True)

    def _recall_failure(self, arm: Arm, resume: Resume, played: Sequence[Conversation]) -> None:
        """Leave a cell that failed before as it is, or forget its failure."""
        # it may have failed without its prompts
        found = [failed_id(arm.cell, known) for known in (played, ())]
        paths = {cell_id: self.folder / CELLS / f"{cell_id}{SUFFIX}" for cell_id in found}
        cell_id = next((cell_id for cell_id, path in paths.items() if path.is_file()), None)
        if cell_id is None:
            return
        if resume.is_fresh or resume.retries_failed:
            for path in paths.values():
                path.unlink(missing_ok=True)
            return
        arm.has_failed = True
        self.progress.leave_out(sum(len(item.prompt.turns) for item in played))
        self.finished(arm.place, cell_id, True)


def interleave(num_arms: int, played: Sequence[Conversation], num_blocks: int) -> Iterator[Turn]:
    """The arms' turns, block by block: forwards in even blocks, backwards in odd ones."""
    num_blocks = min(num_blocks, len(played))
    for block in range(num_blocks):
        part = played[len(played) * block // num_blocks : len(played) * (block + 1) // num_blocks]
        order = range(num_arms) if block % 2 == 0 else range(num_arms - 1, -1, -1)
        for arm in order:
            yield Turn(arm, part, block, block == num_blocks - 1)


def _prepared(arms: Sequence[Arm], played: Sequence[Conversation]) -> Exception | None:
    """Get arms of one kind of backend ready; the error if they cannot."""
    backends = [arm.backend for arm in arms]
    try:
        backend_class(arms[0].cell.backend).prepare_together(backends, played)
    except UnwritableError:
        raise
    except Exception as error:
        return error
    return None


def _by_kind(arms: Sequence[Arm]) -> list[list[Arm]]:
    """The arms of each kind of backend."""
    kinds = dict.fromkeys(arm.cell.backend.kind for arm in arms)
    return [[arm for arm in arms if arm.cell.backend.kind == kind] for kind in kinds]


def _going_on(arms: Sequence[Arm]) -> list[Arm]:
    return [arm for arm in arms if arm.goes_on]


def _not_failed(arms: Sequence[Arm]) -> list[Arm]:
    return [arm for arm in arms if not arm.has_failed]
