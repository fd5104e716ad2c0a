"""The sampling parameters of a request: those of the cell, or its own where the workload gives some."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from harness.config.models import require
from harness.records.strict_json import shown

SMALLEST_NORMAL, LARGEST = 2.0**-126, (2 - 2.0**-23) * 2.0**127
"""Of float32."""
LARGEST_PENALTY, LARGEST_BIAS = 2.0, 100.0
"""As vLLM (vllm/sampling_params.py) and OpenAI have them."""
BIASES = "TOKEN:BIAS/TOKEN:BIAS, token ids with numbers from -100 to 100"
AS_TEXT = "text in quotation marks, without which 7, and in YAML 11:50 (710, in base 60), are numbers and no is false"
"""What is expected where a value is not what was written."""


def biases_of(text: str | None) -> dict[int, float]:
    """The bias of each token in a setting such as `11:-100/5:2.5`; empty for None.

    Raises:
        ValueError: it is none.
    """
    found: dict[int, float] = {}
    for part in text.split("/") if text else ():
        token, _, bias = part.partition(":")
        try:
            token_id, value = int(token), float(bias)
        except ValueError:
            raise ValueError(f"{part!r}") from None
        if token_id < 0 or token_id >= 2**31 or not abs(value) <= LARGEST_BIAS:
            raise ValueError(f"{part!r}")
        if token_id in found:
            raise ValueError(f"token {token_id} twice")
        found[token_id] = value
    return found


def _biases_text(given: Mapping[str, Any]) -> str:
    """Biases as a setting has them, whatever their order and however their numbers are written.

    Raises:
        ValueError: a name is no token id, or a value no number.
    """
    for token, bias in given.items():
        is_number = isinstance(bias, int | float) and not isinstance(bias, bool)
        if not (token.isascii() and token.isdigit() and is_number):
            raise ValueError(
                f"sampling.logit_bias: expected an object of token ids and biases, found {shown({token: bias})}"
            )
    return "/".join(f"{token}:{bias + 0.0!r}" for token, bias in sorted((int(name), given[name]) for name in given))


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """The distribution that one request's tokens are drawn from; see kernels.contract.Sampling."""

    temperature: float = 1.0
    """0 is greedy decoding."""
    top_k: int = 0
    """0 is off."""
    top_p: float = 1.0
    """1 is off."""
    min_p: float = 0.0
    """0 is off."""
    repetition_penalty: float = 1.0
    """See DecodingConfig, as for those below."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 0
    logit_bias: str | None = None

    @property
    def edits(self) -> dict[str, float | str]:
        """What changes the target's logits, by name; empty where nothing does."""
        values = {item: getattr(self, item.name) for item in EDITS}
        # an empty text takes the place of other biases, and is none
        return {item.name: value for item, value in values.items() if value not in (item.default, "")}

    @property
    def biases(self) -> dict[int, float]:
        """By token id."""
        return biases_of(self.logit_bias)

    def num_fixed_tokens(self, eos_token_ids: Collection[int]) -> int:
        """Tokens that have a bias, or end a request under `min_tokens`."""
        return len(self.biases.keys() | (set(eos_token_ids) if self.min_tokens else set()))

    @property
    def recorded(self) -> dict[str, float | str]:
        """The values of a record: settings that change logits only where they do."""
        edits = {item.name for item in EDITS}
        return {name: value for name, value in asdict(self).items() if name not in edits} | self.edits

    @property
    def truncates(self) -> bool:
        """Whether something is cut from the distribution that tokens are drawn from."""
        return self.temperature > 0 and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)

    def check(self, section: str) -> None:
        """Raises ValueError for a value out of range, called `section`.NAME."""
        for name, is_in_range, expected in (
            ("temperature", self.temperature >= 0, "0, or a positive number"),
            ("top_p", 0 < self.top_p <= 1, "a value in (0, 1]"),
            ("min_p", 0 <= self.min_p < 1, "a value in [0, 1)"),
        ):
            value = getattr(self, name)
            # kernels get it in float32, where a smaller number may be 0 and a larger one infinite
            fits = is_in_range and (value == 0 or SMALLEST_NORMAL <= value <= LARGEST)
            require(fits, f"{section}.{name}", f"{expected} that float32 can hold", value)
        require(0 <= self.top_k < 2**31, f"{section}.top_k", "0 (off) or more, below 2**31", self.top_k)
        self._check_edits(section)

    def _check_edits(self, section: str) -> None:
        """The ranges are vLLM's; what lies beyond is refused there too, or taken as the end of the range."""
        fits = SMALLEST_NORMAL <= self.repetition_penalty <= LARGEST
        name = f"{section}.repetition_penalty"
        require(fits, name, "more than 0 (1 is off), in float32", self.repetition_penalty)
        for kind in ("presence", "frequency"):
            value = getattr(self, f"{kind}_penalty")
            fits = abs(value) <= LARGEST_PENALTY
            require(fits, f"{section}.{kind}_penalty", "a number from -2 to 2 (0 is off)", value)
        require(0 <= self.min_tokens < 2**31, f"{section}.min_tokens", "0 (off) or more", self.min_tokens)
        try:
            biases_of(self.logit_bias)
        except ValueError as error:
            is_number = re.fullmatch(r"[\d.]+", str(self.logit_bias)) is not None
            expected = f"{BIASES}, as {AS_TEXT}" if is_number else BIASES
            raise ValueError(f"{section}.logit_bias: expected {expected}, found {error}") from None


EDITS = tuple(
    item
    for item in fields(SamplingSettings)
    if item.name in ("repetition_penalty", "presence_penalty", "frequency_penalty", "min_tokens", "logit_bias")
)
"""The settings that change the target's logits before temperature and truncation."""


WHOLE_NUMBERS = ("top_k", "min_tokens", "seed")


@dataclass(frozen=True, slots=True)
class GivenSampling:
    """What one line of a workload gives for its requests; None leaves the cell's."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    min_tokens: int | None = None
    logit_bias: str | None = None
    seed: int | None = None
    """In the place of the run's seed, so that the answer does not depend on it."""

    @classmethod
    def from_json(cls, value: object) -> GivenSampling:
        """Read and check it; raises ValueError with what was expected and what was found."""
        names = list(cls.__dataclass_fields__)
        expected = f"sampling: expected an object with some of {', '.join(names[:-1])} and {names[-1]}"
        if not isinstance(value, Mapping) or not value or not cls.__dataclass_fields__.keys() >= value.keys():
            raise ValueError(f"{expected}, found {shown(value)}")
        # null is absence
        given = {name: number for name, number in value.items() if number is not None}
        if isinstance(given.get("logit_bias"), Mapping):
            given["logit_bias"] = _biases_text(given["logit_bias"])
        for name, number in given.items():
            if name == "logit_bias":
                if not isinstance(number, str | None):
                    raise ValueError(
                        f"sampling.{name}: expected an object of token ids and biases, found {shown(number)}"
                    )
                continue
            kinds = (int,) if name in WHOLE_NUMBERS else (int, float)
            if isinstance(number, bool) or not isinstance(number, kinds):
                words = "a whole number" if kinds == (int,) else "a number"
                raise ValueError(f"sampling.{name}: expected {words}, found {shown(number)}")
        cls(**given).over(SamplingSettings()).check("sampling")
        # 1 and 1.0, and 0 and -0.0, are one setting with one fingerprint
        kept = (*WHOLE_NUMBERS, "logit_bias")
        return cls(**{name: number if name in kept else number + 0.0 for name, number in given.items()})

    @property
    def values(self) -> dict[str, Any]:
        """What is given, by name; of no biases at all an empty text."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def over(self, default: SamplingSettings) -> SamplingSettings:
        """The parameters of a request; those of `default` where none is given."""
        return replace(default, **{name: value for name, value in self.values.items() if name != "seed"})
