"""The settings of a certification, read from `certify.key=value` arguments. Needs neither Hydra nor torch."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from harness.settings import SettingsError, did_you_mean
from kernels.contract import VerificationMethod

PREFIX = "certify."
OWN_CORE = "harness.certification.own_core:own_core"


class Device(Enum):
    """Where the subject runs."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Size(Enum):
    """How much is played."""

    auto = "auto"
    small = "small"
    full = "full"


@dataclass(frozen=True)
class CertifyConfig:
    """What is certified, how, and where the report goes."""

    subject: str = OWN_CORE
    """package.module:function that takes a device and returns the core to certify."""
    device: Device = Device.auto
    """auto takes a GPU where there is one."""
    size: Size = Size.auto
    """full: every cell, with the samples that detect a total variation of .003; small: fewer cells and samples."""
    samples: int = 0
    """Requests played in each cell; 0 is what the size says."""
    batch: int = 0
    """Requests in flight at a time; 0 is what suits the device."""
    workers: int = 0
    """Processes that play cells at the same time; 0 is what suits the device. The results do not depend on it."""
    methods: tuple[str, ...] = ()
    """Verification methods to certify, separated by commas; all unless given."""
    cells: str = ""
    """Only cells whose name contains this text."""
    controls: bool = True
    """Also play the controls, which must be rejected."""
    seed: int = 0
    """All random streams are drawn from it."""
    output: str = "results/runs/certification"
    """Folder for report.md and certification.json."""

    def __post_init__(self) -> None:
        known = [method.value for method in VerificationMethod]
        for name in self.methods:
            if name not in known:
                raise SettingsError(
                    f"certify.methods: expected some of {', '.join(known)}, found {name!r}{did_you_mean(name, known)}"
                )
        for name in ("samples", "batch", "workers"):
            if getattr(self, name) < 0:
                raise SettingsError(f"certify.{name}: expected 0 or more, found {getattr(self, name)}")
        if 0 < self.samples < 1000:
            raise SettingsError(f"certify.samples: expected at least 1000, found {self.samples}")
        if not self.output:
            raise SettingsError("certify.output: expected a folder, found nothing")


def read_config(arguments: Sequence[str]) -> CertifyConfig:
    """The settings that a command line asks for.

    Args:
        arguments: `certify.key=value`, each key once.

    Raises:
        SettingsError: for anything wrong with them, in one line.
    """
    hints = typing.get_type_hints(CertifyConfig)
    names = [PREFIX + item.name for item in fields(CertifyConfig)]
    values: dict[str, Any] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if not equals or key not in names:
            raise SettingsError(f"unknown setting {argument!r}{did_you_mean(key, names)}; there are {', '.join(names)}")
        name = key.removeprefix(PREFIX)
        if name in values:
            raise SettingsError(f"{key} is given twice; give it once")
        values[name] = _value(key, hints[name], text)
    return CertifyConfig(**values)


def _value(key: str, hint: Any, text: str) -> Any:
    if hint is str:
        return text
    if hint is int:
        try:
            return int(float(text)) if "e" in text else int(text.replace("_", ""))
        except ValueError as error:
            raise SettingsError(f"{key}: expected a whole number, found {text!r}") from error
    if hint is bool:
        if text not in ("true", "false"):
            raise SettingsError(f"{key}: expected true or false, found {text!r}")
        return text == "true"
    if isinstance(hint, type) and issubclass(hint, Enum):
        choices = [member.name for member in hint]
        if text not in choices:
            raise SettingsError(
                f"{key}: expected one of {', '.join(choices)}, found {text!r}{did_you_mean(text, choices)}"
            )
        return hint[text]
    return tuple(part.strip() for part in text.strip("[]").split(",") if part.strip())
