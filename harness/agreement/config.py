"""The settings of an agreement run, read from `agreement.key=value` arguments. Needs neither Hydra nor torch."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from harness.settings import SettingsError, did_you_mean
from kernels.contract import VerificationMethod

PREFIX = "agreement."
MAX_VOCAB_SIZE = 262_144
DTYPES = ("bfloat16", "float16", "float32")
TRUNCATIONS: dict[str, tuple[int, float, float]] = {
    "none": (0, 1.0, 0.0),
    "top-p": (0, 0.95, 0.0),
    "top-k": (50, 1.0, 0.0),
    "min-p": (0, 1.0, 0.05),
    "all": (100, 0.9, 0.02),
}
"""Name -> top-k, top-p, min-p."""


class Candidate(Enum):
    """The core that is compared with the reference."""

    auto = "auto"
    triton = "triton"
    reference = "reference"


@dataclass(frozen=True)
class AgreementConfig:
    """What is compared, on how many decisions, and where the report goes."""

    core: Candidate = Candidate.auto
    """auto: the device's own (Triton on a GPU, else the reference, which compares it with itself)."""
    device: str = "auto"
    """auto, cpu or cuda; auto takes a GPU where there is one. Triton on a CPU needs TRITON_INTERPRET=1."""
    methods: tuple[str, ...] = tuple(method.value for method in VerificationMethod if method.value != "greedy")
    """Verification methods, separated by commas."""
    dtypes: tuple[str, ...] = DTYPES
    truncations: tuple[str, ...] = tuple(TRUNCATIONS)
    temperatures: tuple[float, ...] = (0.7, 1.0)
    decisions: int = 1_200_000
    """At least so many in all, spread evenly over the cells."""
    vocab_size: int = 128_256
    requests: int = 768
    """Requests in a batch."""
    draft_tokens: int = 3
    """Draft tokens of each request, K."""
    law: bool = True
    """Also measure the law of a draw."""
    law_vocab_size: int = MAX_VOCAB_SIZE
    law_draws: int = 65_536
    """Draws from each row of the law."""
    seed: int = 0
    """All logits and random streams are drawn from it."""
    output: str = "results/runs/agreement"
    """Folder for report.md and agreement.json."""

    def __post_init__(self) -> None:
        _known("methods", self.methods, [method.value for method in VerificationMethod])
        _known("dtypes", self.dtypes, DTYPES)
        _known("truncations", self.truncations, TRUNCATIONS)
        _known("device", (self.device,), ("auto", "cpu", "cuda"))
        for name in ("decisions", "vocab_size", "requests", "draft_tokens", "law_vocab_size", "law_draws"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{PREFIX}{name}: expected 1 or more, found {getattr(self, name)}")
        for name in ("vocab_size", "law_vocab_size"):
            if getattr(self, name) > MAX_VOCAB_SIZE:
                raise SettingsError(f"{PREFIX}{name}: expected at most {MAX_VOCAB_SIZE}, found {getattr(self, name)}")
        if not self.temperatures or any(not 0 < each < 100 for each in self.temperatures):
            raise SettingsError(f"{PREFIX}temperatures: expected numbers in (0, 100), found {list(self.temperatures)}")
        if "greedy" in self.methods:
            raise SettingsError(f"{PREFIX}methods: greedy decides nothing at a temperature above 0; leave it out")
        if not self.output:
            raise SettingsError(f"{PREFIX}output: expected a folder, found nothing")


def _known(name: str, values: Sequence[str], known: typing.Iterable[str]) -> None:
    choices = list(known)
    if not values:
        raise SettingsError(f"{PREFIX}{name}: expected some of {', '.join(choices)}, found nothing")
    for value in values:
        if value not in choices:
            hint = did_you_mean(value, choices)
            raise SettingsError(f"{PREFIX}{name}: expected some of {', '.join(choices)}, found {value!r}{hint}")


def read_config(arguments: Sequence[str]) -> AgreementConfig:
    """The settings that a command line asks for.

    Args:
        arguments: `agreement.key=value`, each key once.

    Raises:
        SettingsError: for anything wrong with them, in one line.
    """
    hints = typing.get_type_hints(AgreementConfig)
    names = [PREFIX + item.name for item in fields(AgreementConfig)]
    values: dict[str, Any] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if not equals or key not in names:
            raise SettingsError(f"unknown setting {argument!r}{did_you_mean(key, names)}; there are {', '.join(names)}")
        name = key.removeprefix(PREFIX)
        if name in values:
            raise SettingsError(f"{key} is given twice; give it once")
        values[name] = _value(key, hints[name], text)
    return AgreementConfig(**values)


def _value(key: str, hint: Any, text: str) -> Any:
    try:
        if hint is str:
            return text
        if hint is bool:
            return {"true": True, "false": False}[text]
        if hint is int:
            return int(float(text)) if "e" in text else int(text.replace("_", ""))
        if isinstance(hint, type) and issubclass(hint, Enum):
            return hint[text]
        kind = typing.get_args(hint)[0]
        return tuple(kind(part.strip()) for part in text.strip("[]").split(",") if part.strip())
    except (ValueError, KeyError) as error:
        expected = {bool: "true or false", int: "a whole number"}.get(hint, "numbers, separated by commas")
        if isinstance(hint, type) and issubclass(hint, Enum):
            expected = "one of " + ", ".join(member.name for member in hint)
        raise SettingsError(f"{key}: expected {expected}, found {text!r}") from error
