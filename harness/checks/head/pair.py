"""TARGET and DRAFTER of a command line as settings: names of conf/, folders and Hub ids. No torch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from harness.config.schema import SettingsError, group_options
from harness.models.checkpoint import CheckpointError, checkpoint_folder, read_fields, stored_tensors
from harness.models.checkpoint_kind import NAMES, kind_of
from harness.models.described import CONFIG
from harness.runner.plan.checks import check_model_path


def pair_overrides(arguments: Sequence[str]) -> list[str]:
    """Settings from TARGET and DRAFTER and the settings beside them.

    Raises:
        SettingsError: one of the two alone, or more; or a folder that is not there, or whose kind of drafter cannot be
            told.
    """
    settings = [item for item in arguments if re.match(r"[+~]?[A-Za-z_][\w.]*=", item)]
    named = [item for item in arguments if item not in settings]
    if not named:
        return settings
    if len(named) != 2:
        raise SettingsError(f"expected TARGET and DRAFTER, or settings alone, found {' '.join(named)}")
    (target, drafter), options = named, group_options()
    given = {item.partition("=")[0] for item in settings}
    found = [f"target={target}"] if target in options["target"] else ["target=local", f"target.path={target}"]
    # what is neither a folder nor owner/name is a name, which is refused beside those that there are
    is_name = "drafter" not in given and "/" not in drafter and not Path(drafter).is_dir()
    is_named = is_name or drafter in options["drafter"]
    if "drafter" not in given:
        found.append(f"drafter={drafter if is_named else _kind_at(drafter)}")
    return [*found, *([] if is_named else [f"drafter.path={drafter}"]), *settings]


def _kind_at(path: str) -> str:
    """The kind of drafter in a folder or behind a Hub id."""
    check_model_path("DRAFTER", path)
    try:
        folder = checkpoint_folder(path)
        kind = kind_of(read_fields(folder / CONFIG), stored_tensors(folder))
    except CheckpointError as error:
        raise SettingsError(f"DRAFTER: {error}") from error
    if kind is None:
        raise SettingsError(
            f"DRAFTER: expected the files of {', '.join(NAMES)} in {folder}, found none that is known; name its kind: "
            "drafter=KIND"
        )
    return kind
