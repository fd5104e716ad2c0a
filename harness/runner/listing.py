"""What `run --list` says: the cells of a plan, their prompts, what there is of each, and what the rest will take."""

from __future__ import annotations

from collections.abc import Sequence

from harness.config.cell import CellConfig
from harness.models.assumptions import assumed_of_cell
from harness.records.finished import CHECKPOINTS
from harness.records.runs import CELLS, RUNS
from harness.runner.earlier_cells import NAMED_KINDS, EarlierCell, earlier_of, goes_on, is_done
from harness.runner.estimate import estimate_lines
from harness.runner.plan.run_plan import RunPlan, cell_table
from harness.runner.progress import telling
from harness.runner.prompt_listing import prompt_lines

NOT_KNOWN = "not known"


def listing(plan: RunPlan) -> tuple[str, list[str]]:
    """The table of the cells, and lines on what is left.

    Raises:
        ValueError: the prompts of a file cannot be read.
    """
    # also what ran beside this run, or in it, where output.folder is another place
    runs = (RUNS, plan.folder.parent)
    assumed = _assumed(plan.cells)
    with telling("reading the prompts"):
        prompts = prompt_lines(plan.cells)
    is_there = (plan.folder / CHECKPOINTS).is_dir() or (plan.folder / CELLS).is_dir()
    if not is_there or plan.resume.is_fresh:
        return cell_table(plan.cells), [*assumed, *prompts, *estimate_lines(plan.cells, runs)]
    earlier = earlier_of(plan)
    states = [_state(plan, cell, earlier.get(id(cell))) for cell in plan.cells]
    left = [cell for cell in plan.cells if not is_done(plan, earlier.get(id(cell)))]
    num_failed = sum(state == "failed" for state in states)
    num_done = len(plan.cells) - len(left) - num_failed
    lines = [
        *assumed,
        f"of {len(plan.cells)} cells {num_done} are done, {num_failed} have failed, {len(left)} are left",
    ]
    if NOT_KNOWN in states:
        lines[-1] += f"; of {states.count(NOT_KNOWN)} of these only a worker can tell what there is"
    differing = {name: None for cell in earlier.values() for name, _, _ in cell.differing}
    if differing and not plan.resume.accepts_drift:
        lines.append(
            f"where it is not the same {', '.join(differing)}, the run starts anew; --accept-drift goes on with it"
        )

    def kept(cell: CellConfig) -> int:
        found = earlier.get(id(cell))
        return found.num_requests if found is not None and goes_on(plan, found) and not found.has_failed else 0

    return cell_table(plan.cells, states), [*lines, *prompts] + (estimate_lines(left, runs, kept) if left else [])


def _assumed(cells: Sequence[CellConfig]) -> list[str]:
    """What is assumed of the models of some cells, with the cells' numbers in the table."""
    found: dict[str, list[int]] = {}
    for number, cell in enumerate(cells, start=1):
        for text in assumed_of_cell(cell):
            found.setdefault(text, []).append(number)
    return [
        f"assumed: {text} ({'all cells' if len(numbers) == len(cells) else 'cells ' + ', '.join(map(str, numbers))})"
        for text, numbers in found.items()
    ]


def _state(plan: RunPlan, cell: CellConfig, found: EarlierCell | None) -> str:
    """What there is of a cell, in words."""
    if found is None:
        is_known = cell.backend.kind in NAMED_KINDS and not cell.imported and cell.workload.dataset is None
        return "-" if is_known else NOT_KNOWN
    if found.has_failed:
        return "failed"
    text = "done" if found.cell_id is not None else f"{found.num_requests} requests"
    return text + (f", not the same {', '.join(name for name, _, _ in found.differing)}" if found.differing else "")
