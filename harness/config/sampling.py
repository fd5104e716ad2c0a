"""The sampling parameters of a request: those of the cell, or its own where the workload gives some."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from harness.config.models import require
from harness.records.strict_json import shown

SMALLEST_NORMAL, LARGEST = 2.0**-126, (2 - 2.0**-23) * 2.0**127
"""Of float32."""


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


@dataclass(frozen=True, slots=True)
class GivenSampling:
    """What one line of a workload gives for its requests; None leaves the cell's."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    """In the place of the run's seed, so that the answer does not depend on it."""

    @classmethod
    def from_json(cls, value: object) -> GivenSampling:
        """Read and check it; raises ValueError with what was expected and what was found."""
        expected = "sampling: expected an object with some of temperature, top_k, top_p, min_p and seed"
        if not isinstance(value, Mapping) or not value or not cls.__dataclass_fields__.keys() >= value.keys():
            raise ValueError(f"{expected}, found {shown(value)}")
        # null is absence
        given = {name: number for name, number in value.items() if number is not None}
        for name, number in given.items():
            kinds = (int,) if name in ("top_k", "seed") else (int, float)
            if isinstance(number, bool) or not isinstance(number, kinds):
                words = "a whole number" if kinds == (int,) else "a number"
                raise ValueError(f"sampling.{name}: expected {words}, found {shown(number)}")
        cls(**given).over(SamplingSettings()).check("sampling")
        # 1 and 1.0, and 0 and -0.0, are one setting with one fingerprint
        return cls(**{name: number if name in ("top_k", "seed") else number + 0.0 for name, number in given.items()})

    @property
    def values(self) -> dict[str, Any]:
        """What is given, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def over(self, default: SamplingSettings) -> SamplingSettings:
        """The parameters of a request; those of `default` where none is given."""
        return replace(default, **{name: value for name, value in self.values.items() if name != "seed"})
