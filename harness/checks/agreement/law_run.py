"""Measure the law of a draw over rows (flat, peaked and in between), dtypes, temperatures and truncations.

Shapes: V the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from harness.checks.agreement.config import TRUNCATIONS, AgreementConfig
from harness.checks.agreement.draw_law import Shift, boundary_shift, total_variation
from harness.checks.agreement.rows import EXPONENTS
from harness.checks.agreement.run import device_of, tested_core
from kernels.contract import Sampling


def _normal(vocab_size: int, generator: torch.Generator) -> Tensor:
    return torch.randn(vocab_size, generator=generator, device=generator.device)


def _zipf(vocab_size: int, generator: torch.Generator) -> Tensor:
    """As in harness.checks.agreement.rows, in the middle of its exponents."""
    logits = torch.empty(vocab_size, device=generator.device).exponential_(generator=generator)
    return logits * (sum(EXPONENTS) / 2)


def _peaked(vocab_size: int, generator: torch.Generator) -> Tensor:
    """At temperature 1, above a nearly flat rest."""
    logits = 0.1 * _normal(vocab_size, generator)
    logits[vocab_size // 3] = float(logits.logsumexp(dim=0)) + torch.tensor(0.999 / 0.001).log().item()
    return logits


ROWS: dict[str, Callable[[int, torch.Generator], Tensor]] = {
    "all equal": lambda vocab_size, generator: torch.zeros(vocab_size, device=generator.device),
    "nearly flat": lambda vocab_size, generator: 0.1 * _normal(vocab_size, generator),
    "normal": lambda vocab_size, generator: 3 * _normal(vocab_size, generator),
    "Zipf": _zipf,
    "one token with .999": _peaked,
}
"""Name -> (V, generator) -> [V] float32 logits on the generator's device."""


LAW_DTYPES = ("bfloat16", "float32")
LAW_TEMPERATURES = (0.7, 1.0, 2.0)
LAW_TRUNCATIONS = ("none", "top-p")
MAX_TOTAL_VARIATION = 1e-5
"""What a draw is allowed to be off."""


@dataclass(frozen=True)
class LawResult:
    """The law of a draw from one row."""

    row: str
    dtype: str
    truncation: str
    temperature: float
    total_variation: float | None
    """From the chunk masses and prefix sums of the kernels; None for another core."""
    shift: Shift

    @property
    def holds(self) -> bool:
        """Whether the law is as near to the softmax as it must be."""
        near = self.total_variation is None or self.total_variation <= MAX_TOTAL_VARIATION
        return near and self.shift.largest <= MAX_TOTAL_VARIATION and self.shift.num_impossible == 0


def measure_laws(config: AgreementConfig, report: Callable[[LawResult], None]) -> list[LawResult]:
    """Every combination; `report` is called with each result as soon as it is there."""
    core, device = tested_core(config), device_of(config)
    results = []
    for name, dtype, truncation, temperature in product(ROWS, LAW_DTYPES, LAW_TRUNCATIONS, LAW_TEMPERATURES):
        generator = torch.Generator(device).manual_seed(config.seed)
        logits = ROWS[name](config.law_vocab_size, generator).to(getattr(torch, dtype))
        sampling = Sampling.same_for_all(1, temperature, *TRUNCATIONS[truncation], device)
        variation = None
        if core.name == "triton":
            from harness.checks.agreement.kernel_law import kernel_law

            variation = total_variation(kernel_law(logits, sampling), logits, sampling)
        shift = boundary_shift(core, logits, sampling, config.law_draws, config.seed)
        results.append(LawResult(name, dtype, truncation, temperature, variation, shift))
        report(results[-1])
    return results
