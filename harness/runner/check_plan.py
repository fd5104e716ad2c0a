"""The one place where a plan is checked before work: what is wrong is known before a worker starts, and by `--list`.

| what                                                        | looked at by                                        |
|-------------------------------------------------------------|-----------------------------------------------------|
| settings, each and together                                 | `harness.config`, `harness.runner.plan` when composed |
| files of models: settings, headers of weights, tokenizers   | `harness.models.check_files`, when composed         |
| models of the Hub                                           | here                                                |
| prompts: readable, short enough, with schemas               | `harness.runner.check_prompts`                       |
| this machine: packages, SLURM, a GPU, programs of servers   | `harness.runner.check_machine`                       |

Files are those of the host of the command, with which all hosts of a cluster share them; GPUs and servers of a cluster
are where its workers run, and are not looked for here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.config.cell import CellConfig
from harness.config.launcher import LauncherKind
from harness.config.schema import SettingsError
from harness.models.check_files import check_drafter_files, check_target_files
from harness.models.check_model_configs import check_length
from harness.models.hub_snapshot import cached_snapshot
from harness.runner.check_machine import check_machine
from harness.runner.check_prompts import check_prompts
from harness.runner.plan.run_plan import RunPlan
from harness.runner.turns import groups_of
from harness.workload.hub_lookup import not_on_hub


def check_plan(plan: RunPlan) -> None:
    """Check everything that a run needs.

    Raises:
        SettingsError: with the first thing that is wrong, once for all cells that it concerns.
    """
    check_machine(plan)
    check_inputs(plan, downloads=True)


def check_inputs(plan: RunPlan, *, downloads: bool) -> None:
    """Check what a run reads, wherever it runs.

    Args:
        plan: of the run.
        downloads: whether a data set of the Hub is read, or only looked for.

    Raises:
        SettingsError: with the first thing that is wrong.
    """
    for cell in plan.cells:
        if cell.backend.kind == "local":
            check_length(cell)
    if plan.launcher.kind is LauncherKind.local:
        _check_hub(plan.cells)
    check_prompts(groups_of(plan.cells), downloads=downloads)


def _check_hub(cells: Sequence[CellConfig]) -> None:
    """Models that are named by an id must be in the local Hub cache, or on the Hub."""
    checked: set[str] = set()
    for cell in cells:
        for key, model in (("target.path", cell.target), ("drafter.path", cell.drafter)):
            path, alike = model.path, f"{key} {model.path} {model.revision} {cell.is_served}"
            if path is None or alike in checked or Path(path).expanduser().exists():
                continue
            checked.add(alike)
            folder = cached_snapshot(path, model.revision)
            if folder is not None and folder.name == model.revision:
                continue
            reason = not_on_hub(path, model.revision)
            if reason is None:
                continue
            if folder is None:
                raise SettingsError(
                    f"{key}: expected a folder, or a model on the Hub or in its local cache, found for {path!r} "
                    f"(revision {model.revision or 'main'}): {reason}"
                )
            if not cell.is_served:
                # what the loader takes without a connection
                if key == "target.path":
                    check_target_files(replace(cell.target, path=str(folder)))
                else:
                    check_drafter_files(replace(cell.drafter, path=str(folder)), cell.target)
