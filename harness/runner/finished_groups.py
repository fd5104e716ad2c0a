"""Groups of a plan in which nothing is left to do: they are listed from their records, and no worker is started."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.records.finished import CHECKPOINTS
from harness.runner.cell_label import failed_before
from harness.runner.earlier_cells import EarlierCell, EarlierCells
from harness.runner.manifest import Manifest
from harness.runner.plan.run_plan import RunPlan
from harness.runner.task import Task


def tasks_left(plan: RunPlan, tasks: Sequence[Task], manifest: Manifest, note: Callable[[str], None]) -> list[Task]:
    """The tasks that need a worker; the cells of the others are listed, and their requests counted in the tasks.

    Args:
        plan: of the run; where its workers are on other hosts, whose devices are not known here, all tasks are left.
        tasks: one for each of its groups.
        manifest: gets the cells.
        note: told what was found.
    """
    resume = plan.resume
    asks_for_work = resume.is_fresh or resume.retries_failed
    if asks_for_work or plan.launcher.is_remote or not (plan.folder / CHECKPOINTS).is_dir():
        return list(tasks)
    earlier, left = EarlierCells(plan, with_begun=False), list[Task]()
    answered: list[tuple[Task, dict[int, EarlierCell]]] = []
    for task in tasks:
        try:
            found = earlier.found(task.group)
        except (ValueError, OSError):
            # its worker says what is wrong with its prompts
            found = {}
        if len(found) < len(task.group.cells) or not all(cell.is_left_alone for cell in found.values()):
            left.append(task)
        else:
            answered.append((task, found))
    cells = [item for _, found in answered for item in found.items()]
    if len({cell.cell_id for _, cell in cells}) < len(cells):
        # a worker says which cells of the plan are one
        return list(tasks)
    configs = {place: cell for task in tasks for place, cell in zip(task.places, task.group.cells, strict=True)}
    for task, found in answered:
        num_failed = sum(cell.has_failed for cell in found.values())
        task.num_left_out = num_failed * task.group.num_requests_per_cell
        task.num_before = task.num_requests - task.num_left_out
    for place, cell in cells:
        manifest.add(place, str(cell.cell_id), cell.has_failed)
    failed = [configs[place] for place, cell in cells if cell.has_failed]
    if failed:
        note(failed_before(failed, len(plan.cells)))
    num_finished = sum(not cell.has_failed for _, cell in cells)
    if num_finished:
        note(f"{num_finished} of {len(plan.cells)} cells were finished before, with all that they are compared with")
    return left
