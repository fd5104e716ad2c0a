"""Groups of a plan in which nothing is left to do: they are listed from their records, and no worker is started."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.compose.run_plan import RunPlan
from harness.records.finished import CHECKPOINTS
from harness.settings.launcher import LauncherKind
from harness.sweep.cell_label import label
from harness.sweep.earlier_cells import EarlierCells
from harness.sweep.manifest import Manifest
from harness.sweep.task import Task


def tasks_left(plan: RunPlan, tasks: Sequence[Task], manifest: Manifest, note: Callable[[str], None]) -> list[Task]:
    """The tasks that need a worker; the cells of the others are listed.

    Args:
        plan: of the run; where its workers are on other hosts, whose devices are not known here, all tasks are left.
        tasks: one for each of its groups.
        manifest: gets the cells.
        note: told what was found.
    """
    resume = plan.resume
    asks_for_work = resume.is_fresh or resume.retries_failed
    if asks_for_work or plan.launcher.kind is not LauncherKind.local or not (plan.folder / CHECKPOINTS).is_dir():
        return list(tasks)
    earlier, left, num_finished = EarlierCells(plan, with_begun=False), list[Task](), 0
    for task in tasks:
        try:
            found = earlier.found(task.group)
        except (ValueError, OSError):
            # its worker says what is wrong with its prompts
            found = {}
        if len(found) < len(task.group.cells) or not all(cell.is_left_alone for cell in found.values()):
            left.append(task)
            continue
        for place, cell in found.items():
            manifest.add(place, str(cell.cell_id), cell.has_failed)
            num_finished += not cell.has_failed
            if cell.has_failed:
                config = task.group.cells[place - task.group.first_place]
                note(f"failed before: {label(config)}; --retry-failed runs it again")
    if num_finished:
        note(f"{num_finished} of {len(plan.cells)} cells were finished before, with all that they are compared with")
    return left
