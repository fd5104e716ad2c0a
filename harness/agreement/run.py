"""Compare a core with the reference over methods, dtypes, truncations and temperatures.

Every case compares the draws of the drafts and the verification of batches whose rows look like a language model's.
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
from kernels.methods import TreeMethod

Method = VerificationMethod


@dataclass(frozen=True)
class Case:
    """One combination that is compared."""

    method: VerificationMethod
    dtype: str
    truncation: str
    temperature: float

    @property
    def name(self) -> str:
        return f"{self.method.value}, {self.dtype}, {self.truncation}, T {self.temperature:g}"


@dataclass(frozen=True)
class CaseResult:
    """What the comparison of one case found."""

    case: Case
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


def cases_of(config: AgreementConfig) -> list[Case]:
    """Every combination, in the order of the settings."""
    combinations = product(config.methods, config.dtypes, config.truncations, config.temperatures)
    return [Case(Method(method), dtype, truncation, each) for method, dtype, truncation, each in combinations]


def verification_of(method: VerificationMethod | TreeMethod, num_draft_tokens: int) -> Verification:
    """The method with parameters that let it accept and reject; one rate for each draft position."""
    rates = tuple(0.8**position for position in range(1, num_draft_tokens + 1))
    of_trees = ((0.5, 0.2, 0.1), (0.2, 0.6)) * max(1, num_draft_tokens)
    return Verification(method, leniency=0.7, synthetic_rates=rates, synthetic_tree_rates=of_trees, fly_window_size=1)


def compare_cases(config: AgreementConfig, report: Callable[[CaseResult], None]) -> list[CaseResult]:
    """Run every case.

    Args:
        config: what to compare.
        report: called with each case's result as soon as it is there.
    """
    tested, cases = tested_core(config), cases_of(config)
    results = []
    for case in cases:
        found = compare_case(case, config, tested, -(-config.decisions // len(cases)))
        report(found)
        results.append(found)
    return results


def compare_case(case: Case, config: AgreementConfig, tested: Core, num_decisions: int) -> CaseResult:
    """Compare batch after batch until there are enough decisions.

    Args:
        case: what is compared.
        config: sizes and seed.
        tested: the core under test.
        num_decisions: at least so many.
    """
    device, reference = device_of(config), reference_core()
    # a seed of the case's own, so that leaving other cases out does not change it
    generator = torch.Generator(device).manual_seed(config.seed * 2**32 + crc32(case.name.encode()))
    shape = shape_of(case, config)
    verification = verification_of(case.method, config.draft_tokens)
    verified, drafted, begin = [Agreement()], [Agreement()], time.perf_counter()
    while total([*verified, *drafted]).num_decisions < num_decisions:
        batch = drafted_round(shape, tested, generator)
        drafted.append(compare_draw(tested, reference, batch.drafts))
        verified.append(compare_verify(tested, reference, batch.inputs, verification))
    return CaseResult(case, total(verified), total(drafted), time.perf_counter() - begin)


def shape_of(case: Case, config: AgreementConfig) -> RoundShape:
    """The rounds of a case."""
    top_k, top_p, min_p = TRUNCATIONS[case.truncation]
    return RoundShape(
        num_requests=config.requests,
        num_draft_tokens=config.draft_tokens,
        vocab_size=config.vocab_size,
        dtype=getattr(torch, case.dtype),
        temperature=case.temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        shared_noise=case.method.traits.decided_by_noise,
    )
