"""The smaller size of an experiment where there is no GPU: what its file says of it, unless the command line says more.

This module does not know what the settings are for, nor which experiments have a smaller size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from harness.compose.overrides import Given, check_given
from harness.settings.device import asks_for_gpu


def smaller_values(
    root: DictConfig, given: Mapping[str, Given], of_experiment: Mapping[str, Given]
) -> dict[str, Given]:
    """What the block `without_gpu` sets in this run, by key; nothing where there is a GPU.

    Args:
        root: the composed settings.
        given: the command line, which wins.
        of_experiment: the experiment's sweep, whose settings take lists in the block.

    Raises:
        SettingsError: for an unknown key or a wrong value in the block.
    """
    block: Any = OmegaConf.to_container(root.without_gpu)
    if not block or asks_for_gpu(root.backend.device):
        return {}
    return {
        key: check_given(key, values if key in of_experiment else [values], is_sweep=key in of_experiment)
        for key, values in block.items()
        if key not in given
    }


def size_remark(root: DictConfig, smaller: Mapping[str, Given], of_experiment: Mapping[str, Given]) -> str:
    """What was made smaller, with the values that the settings composed before had."""
    changes = []
    for key, item in smaller.items():
        before = of_experiment[key].values if key in of_experiment else (OmegaConf.select(root, key),)
        changes.append(f"{key}={_text(item.values)} instead of {_text(before)}")
    return f"reduced size, because there is no GPU: {', '.join(changes)}"


def _text(values: tuple[Any, ...]) -> str:
    return ",".join("null" if value is None else f"{value}" for value in values)
