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

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from harness.config.cell import CellConfig
from harness.config.drafter import NetworkConfig
from harness.config.schema import SettingsError
from harness.models.check_files import check_drafter_files, check_target_files
from harness.models.check_model_configs import check_length
from harness.models.hub_snapshot import cached_snapshot
from harness.models.packaged import PACKAGES
from harness.runner.check_machine import check_machine
from harness.runner.check_prompts import check_prompts
from harness.runner.groups import groups_of
from harness.runner.plan.run_plan import RunPlan
from harness.runner.progress import telling
from harness.workload.hub_lookup import Repository, asked_at_once, not_on_hub


def check_plan(plan: RunPlan) -> None:
    """Check everything that a run needs.

    Raises:
        SettingsError: with the first thing that is wrong, once for all cells that it concerns.
    """
    check_machine(plan)
    check_inputs(plan, downloads=True)


def check_inputs(plan: RunPlan, *, downloads: bool) -> None:
    """Check what a run reads, wherever it runs, and tell now and then that it takes long.

    Args:
        plan: of the run.
        downloads: whether a data set of the Hub is read, or only looked for.

    Raises:
        SettingsError: with the first thing that is wrong.
    """
    for cell in plan.cells:
        if cell.backend.kind == "local":
            check_length(cell)
    asked = list(_asked_of_hub(plan.cells)) if not plan.launcher.is_remote else []
    datasets = [cell.workload.dataset for cell in plan.cells if cell.workload.dataset is not None]
    repositories = [
        *(Repository(item.path, item.revision) for item in asked),
        *(Repository(name, is_dataset=True) for name in datasets if not Path(name).is_dir()),
    ]
    # a data set that is downloaded, or prompts that all have to be tokenized
    with telling("checking what the run needs"), asked_at_once(repositories):
        for item in asked:
            _check_model(item)
        check_prompts(groups_of(plan.cells), downloads=downloads)


class _Asked(NamedTuple):
    """A model that the Hub is asked for."""

    key: str
    """The setting that names it."""
    path: str
    revision: str | None
    cached: Path | None
    """Its folder in the local Hub cache, which may be older than the Hub's."""
    cell: CellConfig


def _asked_of_hub(cells: Sequence[CellConfig]) -> Iterator[_Asked]:
    """The models that are named by an id, but for those of which the cache has what is asked for."""
    checked: set[str] = set()
    for cell in cells:
        for key, model in (("target.path", cell.target), ("drafter.path", cell.drafter)):
            path, alike = model.path, f"{key} {model.path} {model.revision} {cell.is_served}"
            if path is None or alike in checked or Path(path).expanduser().exists():
                continue
            checked.add(alike)
            folder = cached_snapshot(path, model.revision)
            if folder is None or folder.name != model.revision:
                yield _Asked(key, path, model.revision, folder, cell)


def _from_a_package(asked: _Asked) -> str:
    """What installs a package that has the model, where one would be taken."""
    package = PACKAGES.get(asked.path)
    if package is None or asked.revision is not None or asked.cell.is_served:
        return ""
    return f"; a package has its weights too: {package.how} (`make public-demo` does both)"


def _check_model(asked: _Asked) -> None:
    """It must be in the local Hub cache, or on the Hub."""
    reason = not_on_hub(asked.path, asked.revision)
    if reason is None:
        return
    cell = asked.cell
    if asked.cached is None:
        raise SettingsError(
            f"{asked.key}: expected a folder, or a model on the Hub or in its local cache, found for {asked.path!r} "
            f"(revision {asked.revision or 'main'}): {reason}{_from_a_package(asked)}"
        )
    if not cell.is_served:
        # what the loader takes without a connection
        if asked.key == "target.path":
            check_target_files(replace(cell.target, path=str(asked.cached)))
        elif isinstance(cell.drafter, NetworkConfig):
            check_drafter_files(replace(cell.drafter, path=str(asked.cached)), cell.target)
