"""Turns the files in conf/ and a command line into the plan of a run, with every cell known and checked.

Hydra composes the files once per combination of groups; swept values are set on the typed result. All cells are
validated before a model is loaded, because a sweep that fails in its last cell is a wasted sweep. This module does not
know how cells are run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import fields
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from unicodedata import normalize

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from harness.config.cell import CellConfig, InvalidCombinationError
from harness.config.cli.shell_line import shell_line
from harness.config.drafting import NUM_TOKENS, OF_CHAINS, SIBLINGS, TREE
from harness.config.imported import ImportPath, is_import_path, named
from harness.config.launcher import LAUNCHER, LauncherConfig
from harness.config.run import RUN_UNIONS, InvalidCells, invalid_text
from harness.config.schema import CONF, SettingsError, group_options
from harness.config.tracker import TRACKING, TrackerKind
from harness.config.tree import is_chain
from harness.records.runs import RUNS
from harness.report.trackers.tracker import tracker_of
from harness.runner.plan.checks import check_cells, check_effect, check_target
from harness.runner.plan.overrides import (
    Given,
    check_given,
    read_overrides,
    settings_of_own,
    size_warning,
    smaller_values,
)
from harness.runner.plan.preferred_checkpoints import resolve_preferred
from harness.runner.plan.readable_models import readable_drafter, readable_target
from harness.runner.plan.run_plan import RunPlan, with_baselines
from harness.runner.plan.typed_sections import member_section, root_schema, typed_section
from harness.runner.plan.unnamed import in_own_folder
from harness.workload.prompt_files import prompt_file
from kernels.methods import NAMED_METHODS

SLOWEST_FIRST = (
    "target",
    "workload",
    "backend",
    "server",
    "seed",
    "drafter",
    "drafting",
    "decoding",
    "verification",
    "constraint",
)
"""Order of the product of a sweep; settings of one section keep the order in which they were given."""

UNNAMED = "run"
"""Name of a run for which only a folder is given."""
Point = dict[str, Any]
"""One value for each swept setting or group."""


class _Composed(NamedTuple):
    """Every combination of a run."""

    root: DictConfig
    num_points: int
    cells: list[CellConfig]
    skipped: list[tuple[Mapping[str, Any], str]]
    """Invalid points, and why."""
    warnings: list[str]
    """What makes the run another than the one asked for."""


def compose_plan(arguments: Sequence[str], command: str = "") -> RunPlan:
    """Compose, sweep and check the cells that a command line asks for.

    Args:
        arguments: overrides in Hydra's grammar; several values of a setting are a sweep.
        command: the command line as typed, kept in the plan; built from the arguments if empty.

    Returns:
        The plan, with baselines and without duplicates, in a new folder where none is named.

    Raises:
        SettingsError: for anything wrong with the settings, in one line; combinations without meaning are listed.
    """
    given = read_overrides(arguments)
    experiment = given["experiment"].values[0] if "experiment" in given else "null"
    with initialize_config_dir(str(CONF), version_base="1.3"):
        ConfigStore.instance().store(name="run_settings", node=root_schema())
        try:
            root, num_points, cells, skipped, warnings = _compose_cells(given, experiment)
        except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
            raise SettingsError(_one_line(error)) from error
    if skipped and (root.invalid_cells is InvalidCells.error or not cells):
        raise SettingsError(invalid_text(skipped, num_points))
    check_cells(cells)
    is_unnamed = not (root.name or root.output.folder) and experiment == "null"
    # one form of letters with marks, whose two parts some keyboards and file systems give one by one
    name = normalize("NFC", root.name or (experiment if experiment != "null" else UNNAMED))
    if not re.fullmatch(r"[\w.-]*\w[\w.-]*", name):
        raise SettingsError(f"name: expected letters, digits, dots, dashes and underscores, found {name!r}")
    folder = Path(root.output.folder) if root.output.folder else RUNS / name
    if os.path.isfile(folder):  # Path.is_file raises for a name that is too long
        raise SettingsError(f"output.folder: expected a folder, found a file at {str(folder)!r}")
    plan = RunPlan(
        name=name,
        title=root.title or name,
        cells=with_baselines(cells),
        skipped=tuple(skipped),
        folder=folder,
        command=command or shell_line(["rejection-lab", "run", *arguments]),
        shows=root.shows or "",
        does_not_show=root.does_not_show or "",
        reference=_reference(root),
        warnings=tuple(warnings),
        launcher=_launcher(root, given),
        tracking=_tracking(root),
        is_unnamed=is_unnamed,
    )
    return in_own_folder(plan)


def _launcher(root: DictConfig, given: Mapping[str, Given]) -> LauncherConfig:
    try:
        found: LauncherConfig = typed_section(LAUNCHER.section, root[LAUNCHER.section])
    except ValueError as error:
        raise SettingsError(str(error)) from error
    for key in given:
        section, _, name = key.partition(".")
        if section == LAUNCHER.section and name and not LAUNCHER.has(found, name):
            raise SettingsError(
                f"{key}: expected a setting that launcher={found.kind} has, found one that is used only "
                f"{LAUNCHER.with_members(name)}"
            )
    return found


def _reference(root: DictConfig) -> str | None:
    if root.reference is None:
        return None
    try:
        return named("reference", NAMED_METHODS, root.reference).value
    except ValueError as error:
        raise SettingsError(str(error)) from error


def _tracking(root: DictConfig) -> TrackerKind | ImportPath | None:
    if root.output.tracking is None:
        return None
    found: TrackerKind | ImportPath = named(TRACKING, TrackerKind.__members__, root.output.tracking)
    try:
        tracker_of(found)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    return found


def _compose_cells(given: Mapping[str, Given], experiment: str) -> _Composed:
    """Compose the files, make the run smaller where it must be, and go through the sweep."""
    root = _compose(_groups(given), given)
    sweep = _experiment_sweep(root, given, experiment)
    try:
        smaller = smaller_values(root, given, sweep)
    except SettingsError as error:
        raise SettingsError(f"conf/experiment/{experiment}.yaml: without_gpu: {error}") from error
    if not smaller:
        return _cells_of(root, given, given, sweep, [])
    warning, settings = size_warning(root, smaller, sweep), {**smaller, **given}
    try:
        return _cells_of(_compose(_groups(settings), settings), settings, given, sweep, [warning])
    except SettingsError as error:
        with suppress(SettingsError):
            _cells_of(root, given, given, sweep, [])
            # what was given suits the full size alone
            error = SettingsError(f"{error}; {warning}; backend.device=cuda plans it in full")
        raise error from None


def _cells_of(
    root: DictConfig,
    settings: Mapping[str, Given],
    given: Mapping[str, Given],
    sweep: Mapping[str, Given],
    warnings: list[str],
) -> _Composed:
    """Go through the sweep.

    Args:
        root: the settings that are not swept.
        settings: what is given, and smaller values in the place of others.
        given: the command line.
        sweep: of the experiment.
        warnings: what makes the run another than the one asked for.
    """
    points, cells, skipped, found = _cells(root, settings, _points(settings, sweep))
    if root.invalid_cells is InvalidCells.skip:
        cells, skipped = _without_missing_prompts(cells, skipped)
    if cells and (not skipped or root.invalid_cells is InvalidCells.skip):
        check_effect(given, cells)
    return _Composed(root, points, cells, skipped, [*warnings, *found])


def _compose(groups: Mapping[str, str], given: Mapping[str, Given]) -> DictConfig:
    """The settings with these options of groups and the values given for the whole run."""
    root = deepcopy(_from_files(CONF, _key(groups), _state(CONF)))
    for union in RUN_UNIONS.values():
        values: Any = OmegaConf.to_container(root[union.section])
        own = groups.get(union.section, "")
        root[union.section] = member_section(union, {**values, union.tag: own} if is_import_path(own) else values)
    for item in given.values():
        if not item.is_group and not item.is_sweep and _has(root, item.key):
            OmegaConf.update(root, item.key, item.values[0])
    return root


def _has(root: DictConfig, key: str) -> bool:
    """Whether the settings have a key: the chosen member of a union has its own settings alone."""
    section, _, name = key.partition(".")
    return section not in RUN_UNIONS or not name or name in root[section]


@lru_cache(maxsize=256)
def _from_files(
    folder: Path, groups: tuple[tuple[str, str], ...], state: tuple[tuple[str, int, int], ...]
) -> DictConfig:
    """What Hydra composes with these options of groups; once for every state of the files in the folder."""
    return compose("config", overrides=[f"{name}={option}" for name, option in groups if not is_import_path(option)])


def _state(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Path, time of the last change and size of every file of settings."""
    found = ((path, path.stat()) for path in sorted(folder.rglob("*.yaml")))
    return tuple((str(path), stat.st_mtime_ns, stat.st_size) for path, stat in found)


def _groups(given: Mapping[str, Given]) -> dict[str, str]:
    """The groups chosen for the whole run."""
    return {item.key: item.values[0] for item in given.values() if item.is_group and not item.is_sweep}


def _experiment_sweep(root: DictConfig, given: Mapping[str, Given], experiment: str) -> dict[str, Given]:
    """The sweep of an experiment's file, checked as the command line is."""
    sweep: Any = OmegaConf.to_container(root.sweep)
    checked = {}
    chosen = [(item.key, item.values) for item in given.values()]
    own = settings_of_own([*chosen, *((str(key), values) for key, values in sweep.items() if isinstance(values, list))])
    for key, values in sweep.items():
        if not isinstance(values, list):
            raise SettingsError(f"conf/experiment/{experiment}.yaml: sweep of {key}: expected a list, found {values}")
        try:
            item = check_given(str(key), values, True, own)
            checked[item.key] = item
        except SettingsError as error:
            raise SettingsError(f"conf/experiment/{experiment}.yaml: sweep: {error}") from error
    return checked


def _points(given: Mapping[str, Given], of_experiment: Mapping[str, Given]) -> list[Point]:
    """The product of everything that is swept, in the order of the sweep; what is given replaces the experiment's."""
    axes = [item for item in {**of_experiment, **given}.values() if item.is_sweep]
    axes.sort(key=lambda item: _rank(item.key))
    keys = [axis.key for axis in axes]
    return [dict(zip(keys, values, strict=True)) for values in product(*(axis.values for axis in axes))]


def _rank(key: str) -> tuple[int, bool]:
    section = key.partition(".")[0]
    return SLOWEST_FIRST.index(section), section != key


def _cells(
    root: DictConfig, given: Mapping[str, Given], points: Sequence[Point]
) -> tuple[int, list[CellConfig], list[tuple[Mapping[str, Any], str]], list[str]]:
    """The number of different points, the valid cells, the invalid points with the reason, and warnings.

    An axis of a setting that the member of a point does not have is none there, nor is one of chains for a tree, or of
    trees for a chain, so that several points may be one.
    """
    cells: list[CellConfig] = []
    skipped: list[tuple[Mapping[str, Any], str]] = []
    warnings: dict[str, None] = {}
    chosen = _groups(given)
    composed = {_key(chosen): root}
    sections: dict[tuple[tuple[str, str], ...], dict[tuple[str, str], Any]] = {}
    checked: set[str] = set()
    different: set[str] = set()
    for each in points:
        groups = chosen | {name: option for name, option in each.items() if name in group_options()}
        if _key(groups) not in composed:
            composed[_key(groups)] = _compose(groups, given)
        point = {key: value for key, value in each.items() if _has(composed[_key(groups)], key)}
        values = {name: value for name, value in point.items() if name not in groups}
        shape = point.get(TREE, composed[_key(groups)].drafting.tree)
        if shape is None or not is_chain(shape):
            of_others = (SIBLINGS,) if shape is None else (NUM_TOKENS, *OF_CHAINS)
            point = {key: value for key, value in point.items() if key not in of_others}
        if repr(point) in different:
            continue
        different.add(repr(point))
        try:
            cell, warning = _cell(composed[_key(groups)], values, sections.setdefault(_key(groups), {}), checked)
        except InvalidCombinationError as error:
            skipped.append((point, str(error)))
            continue
        cells.append(cell)
        if warning is not None:
            warnings[warning] = None
    return len(different), cells, skipped, list(warnings)


def _key(groups: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(groups.items()))


def _cell(
    root: DictConfig, values: Mapping[str, Any], sections: dict[tuple[str, str], Any], checked: set[str]
) -> tuple[CellConfig, str | None]:
    """One cell as a typed object, and a warning about its models; raises SettingsError or InvalidCombinationError.

    Args:
        root: the settings that are not swept; gets the values.
        values: of this point of the sweep, which has the same keys at every point.
        sections: typed sections by their name and values, of earlier points of the same root; gets those of this one.
        checked: targets that were looked at; gets this one.
    """
    for key, value in values.items():
        OmegaConf.update(root, key, value)
    parts: dict[str, Any] = {}
    for item in fields(CellConfig):
        swept = repr([value for key, value in values.items() if key.partition(".")[0] == item.name])
        try:
            if (item.name, swept) not in sections:
                sections[item.name, swept] = typed_section(item.name, root[item.name])
            parts[item.name] = sections[item.name, swept]
        except ValueError as error:
            text = str(error)
            raise SettingsError(text if text.startswith(item.name) else f"{item.name}: {text}") from error
    models = resolve_preferred(parts["target"], parts["drafter"])
    is_loaded = parts["backend"].kind != "server"
    models = models._replace(
        target=readable_target(models.target, is_loaded=is_loaded),
        drafter=readable_drafter(models.drafter, models.target, is_loaded=is_loaded),
    )
    if f"{is_loaded} {models.target}" not in checked:
        check_target(models.target, is_loaded=is_loaded)
        checked.add(f"{is_loaded} {models.target}")
    return CellConfig(**(parts | {"target": models.target, "drafter": models.drafter})), models.warning


def _without_missing_prompts(
    cells: Sequence[CellConfig], skipped: Sequence[tuple[Mapping[str, Any], str]]
) -> tuple[list[CellConfig], list[tuple[Mapping[str, Any], str]]]:
    """The cells whose prompts are there; those left out stand once for each file."""
    paths = dict.fromkeys(path for cell in cells for path in cell.workload.paths)
    missing = [path for path in paths if not os.path.isfile(prompt_file(path))]
    left = [cell for cell in cells if not set(cell.workload.paths).intersection(missing)]
    reasons = [({"workload.path": path}, f"there is no file of prompts at {path}") for path in missing]
    return left, [*skipped, *reasons]


def _one_line(error: Exception) -> str:
    """What Hydra, OmegaConf or YAML say about a mistake in the files of conf/, without their indented details."""
    texts = [str(item) for item in (error, error.__cause__) if item is not None]
    lines = [line for text in texts for line in text.splitlines() if line.strip() and not line.startswith((" ", "\t"))]
    return "conf/: " + " ".join(dict.fromkeys(lines))
