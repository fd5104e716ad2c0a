"""The settings of the benchmark, read from `bench.key=value` arguments. Needs neither Hydra nor torch."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from harness.settings import SettingsError, did_you_mean

PREFIX = "bench."


class Preset(Enum):
    """How much is measured."""

    smoke = "smoke"
    bars = "bars"
    full = "full"


class Device(Enum):
    """Where it runs."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Flush(Enum):
    """How the L2 is emptied before each repeat."""

    write = "write"
    read = "read"


@dataclass(frozen=True)
class BenchConfig:
    """What is measured, how, and where the results go."""

    preset: Preset = Preset.bars
    device: Device = Device.auto
    cases: str = ""
    """Only cases whose name contains this text."""
    repeats: int = 100
    """Timed repeats of each case."""
    checked: int = 16
    """Requests of each case that are compared with the reference before it is timed."""
    flush: Flush = Flush.write
    peers: bool = True
    """Also time eager torch, torch.compile and, where importable, FlashInfer on the cases of `bars`."""
    questions: bool = True
    """Also settle the two open questions of vLLM PR 35461."""
    seed: int = 0
    output: str = "results/runs/kernel_bench"

    def __post_init__(self) -> None:
        fewest = 2 if self.preset is Preset.smoke else 50
        if self.repeats < fewest:
            raise SettingsError(f"bench.repeats: expected at least {fewest}, found {self.repeats}")
        if self.checked < 1:
            raise SettingsError(f"bench.checked: expected at least 1, found {self.checked}; nothing is timed unchecked")
        if self.seed < 0:
            raise SettingsError(f"bench.seed: expected 0 or more, found {self.seed}")
        if not self.output:
            raise SettingsError("bench.output: expected a folder, found nothing")
        if self.device is Device.cpu and self.preset is not Preset.smoke:
            raise SettingsError(
                f"bench.device=cpu: expected bench.preset=smoke, found {self.preset.name}; the others need a GPU"
            )


def read_config(arguments: Sequence[str]) -> BenchConfig:
    """The settings that a command line asks for.

    Args:
        arguments: `bench.key=value`, each key once.

    Raises:
        SettingsError: for anything wrong with them, in one line.
    """
    hints = typing.get_type_hints(BenchConfig)
    keys = [PREFIX + item.name for item in fields(BenchConfig)]
    values: dict[str, Any] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if not equals:
            raise SettingsError(f"expected bench.setting=value, found {argument!r}")
        if key not in keys:
            raise SettingsError(f"unknown setting {key!r}{did_you_mean(key, keys)}; there are {', '.join(keys)}")
        name = key.removeprefix(PREFIX)
        if name in values:
            raise SettingsError(f"{key} is given twice; give it once")
        values[name] = _value(key, hints[name], text)
    return BenchConfig(**values)


def _value(key: str, hint: Any, text: str) -> Any:
    if hint is str:
        return text
    if hint is int:
        try:
            return int(text)
        except ValueError as error:
            raise SettingsError(f"{key}: expected a whole number, found {text!r}") from error
    if hint is bool:
        if text not in ("true", "false"):
            raise SettingsError(f"{key}: expected true or false, found {text!r}")
        return text == "true"
    choices = [member.name for member in hint]
    if text not in choices:
        raise SettingsError(f"{key}: expected one of {', '.join(choices)}, found {text!r}{did_you_mean(text, choices)}")
    return hint[text]
