"""Compare a core with the reference over methods, dtypes, truncations and temperatures.

Every cell compares the draws of the drafts and the verification of batches whose rows look like a language model's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from zlib import crc32

import torch

from harness.agreement.compare import compare_draw, compare_verify
from harness.agreement.config import TRUNCATIONS, AgreementConfig, Candidate
from harness.agreement.counts import Agreement, total
from harness.agreement.rows import RoundShape, drafted_round
from harness.settings.device import resolve_device
from harness.settings.schema import SettingsError
from kernels.contract import Verification, VerificationMethod
from kernels.core import Core, reference_core, triton_core

Method = VerificationMethod


@dataclass(frozen=True)
class Cell:
    """One combination that is compared."""

    method: VerificationMethod
    dtype: str
    truncation: str
    temperature: float

    @property
    def name(self) -> str:
        return f"{self.method.value}, {self.dtype}, {self.truncation}, T {self.temperature:g}"


@dataclass(frozen=True)
class CellResult:
    """What a cell found."""

    cell: Cell
    verification: Agreement
    drafting: Agreement
    seconds: float

    @property
    def agreement(self) -> Agreement:
        return total([self.verification, self.drafting])


def device_of(config: AgreementConfig) -> torch.device:
    """Where the comparison runs; raises SettingsError when a GPU was asked for and there is none."""
    return resolve_device(config.device.value, "--device")


def tested_core(config: AgreementConfig) -> Core:
    """The core that is compared with the reference; raises SettingsError where it cannot run."""
    match config.core:
        case Candidate.triton:
            if device_of(config).type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
                raise SettingsError(
                    "--core triton: expected TRITON_INTERPRET=1 in the environment on a CPU, found none; "
                    "set it, or use a GPU"
                )
            return triton_core()
        case Candidate.reference:
            return reference_core()
        case _ if device_of(config).type == "cpu":
            raise SettingsError(
                "--core auto: expected a GPU, found a CPU, whose core is the reference itself; give "
                "--core triton with TRITON_INTERPRET=1 in the environment to run the kernels in Triton's "
                "interpreter (slow), or --core reference to check the command only"
            )
        case _:
            return triton_core()


def cells_of(config: AgreementConfig) -> list[Cell]:
    """Every combination, in the order of the settings."""
    combinations = product(config.methods, config.dtypes, config.truncations, config.temperatures)
    return [Cell(Method(method), dtype, truncation, each) for method, dtype, truncation, each in combinations]


def verification_of(method: VerificationMethod, num_draft_tokens: int) -> Verification:
    """The method with parameters that let it accept and reject; one rate for each draft position."""
    rates = tuple(0.8**position for position in range(1, num_draft_tokens + 1))
    return Verification(method, leniency=0.7, synthetic_rates=rates)


def compare_cells(config: AgreementConfig, report: Callable[[CellResult], None]) -> list[CellResult]:
    """Run every cell.

    Args:
        config: what to compare.
        report: called with each cell's result as soon as it is there.
    """
    tested, cells = tested_core(config), cells_of(config)
    results = []
    for cell in cells:
        found = compare_cell(cell, config, tested, -(-config.decisions // len(cells)))
        report(found)
        results.append(found)
    return results


def compare_cell(cell: Cell, config: AgreementConfig, tested: Core, num_decisions: int) -> CellResult:
    """Compare batch after batch until there are enough decisions.

    Args:
        cell: the combination.
        config: sizes and seed.
        tested: the core under test.
        num_decisions: at least so many.
    """
    device, reference = device_of(config), reference_core()
    # a seed of the cell's own, so that leaving other cells out does not change it
    generator = torch.Generator(device).manual_seed(config.seed * 2**32 + crc32(cell.name.encode()))
    shape = shape_of(cell, config)
    verification = verification_of(cell.method, config.draft_tokens)
    verified, drafted, begin = [Agreement()], [Agreement()], time.perf_counter()
    while total([*verified, *drafted]).num_decisions < num_decisions:
        batch = drafted_round(shape, tested, generator)
        drafted.append(compare_draw(tested, reference, batch.drafts))
        verified.append(compare_verify(tested, reference, batch.inputs, verification))
    return CellResult(cell, total(verified), total(drafted), time.perf_counter() - begin)


def shape_of(cell: Cell, config: AgreementConfig) -> RoundShape:
    """The rounds of a cell."""
    top_k, top_p, min_p = TRUNCATIONS[cell.truncation]
    return RoundShape(
        num_requests=config.requests,
        num_draft_tokens=config.draft_tokens,
        vocab_size=config.vocab_size,
        dtype=getattr(torch, cell.dtype),
        temperature=cell.temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        shared_noise=cell.method.traits.decided_by_noise,
    )
