"""Compare a core with the reference over methods, dtypes, truncations and temperatures.

Every case compares the draws of the drafts and the verification of batches whose rows look like a language model's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import cycle, product
from zlib import crc32

import torch

from harness.checks.agreement.compare import compare_children, compare_draw, compare_verify
from harness.checks.agreement.config import TRUNCATIONS, AgreementConfig, Candidate
from harness.checks.agreement.counts import Agreement, total
from harness.checks.agreement.rows import RoundShape, drafted_round
from harness.checks.agreement.tree_rows import FIXED, RAGGED, drafted_trees
from harness.config.cli.methods import check_hooks, method_of
from harness.config.device import resolve_device
from harness.config.schema import SettingsError
from kernels.core import Core, reference_core, triton_core
from kernels.methods import DraftSampling, Method, SiblingDraws, TreeMethod
from kernels.verification import probe

MAX_TREES = 160
"""Requests of a batch of trees: the reference makes several float64 copies of their rows."""


@dataclass(frozen=True)
class Case:
    """One combination that is compared."""

    method: Method
    """One for trees where drafts are trees."""
    dtype: str
    truncation: str
    temperature: float
    siblings: SiblingDraws | None = None
    """How the children of a node are drawn; None: chains."""
    one_hot: bool = False
    """Trees of the most probable tokens, which verification takes as certain."""

    @property
    def name(self) -> str:
        drafts = ""
        if self.siblings is not None:
            drafts = "one-hot trees, " if self.one_hot else f"trees of {self.siblings.value} siblings, "
        return f"{self.method.value}, {drafts}{self.dtype}, {self.truncation}, T {self.temperature:g}"


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
    """The core that is compared with the reference; raises SettingsError where it cannot run, or not every method."""
    core = _core(config)
    if core.name != reference_core().name:
        check_hooks(config.chain_methods)
    return core


def _core(config: AgreementConfig) -> Core:
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
    chains = product(config.chain_methods, config.dtypes, config.truncations, config.temperatures)
    cases = [Case(method_of(name), dtype, truncation, each) for name, dtype, truncation, each in chains]
    return cases + _tree_cases(config)


def _tree_cases(config: AgreementConfig) -> list[Case]:
    """Every way to draft trees for the methods x every truncation; of dtypes and temperatures one after another, since
    the reference walks slowly."""
    ways: list[tuple[TreeMethod, SiblingDraws, bool]] = []
    for method in map(TreeMethod, config.tree_methods):
        ways += [(method, siblings, False) for siblings in method.traits.siblings]
        if DraftSampling.greedy in method.traits.draft_samplings:
            ways.append((method, SiblingDraws.distinct, True))
    kinds = cycle(product(config.dtypes, config.temperatures))
    cases = []
    for (method, siblings, one_hot), truncation in product(ways, config.truncations):
        dtype, temperature = next(kinds)
        cases.append(Case(method, dtype, truncation, temperature, siblings, one_hot))
    return cases


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
    if case.siblings is not None:
        return _compare_trees(case, config, tested, num_decisions, generator)
    shape = shape_of(case, config)
    verification = probe(case.method, config.draft_tokens)
    verified, drafted, begin = [Agreement()], [Agreement()], time.perf_counter()
    while total([*verified, *drafted]).num_decisions < num_decisions:
        batch = drafted_round(shape, tested, generator)
        drafted.append(compare_draw(tested, reference, batch.drafts))
        verified.append(compare_verify(tested, reference, batch.inputs, verification))
    return CaseResult(case, total(verified), total(drafted), time.perf_counter() - begin)


def _compare_trees(
    case: Case, config: AgreementConfig, tested: Core, num_decisions: int, generator: torch.Generator
) -> CaseResult:
    """The same of trees: a batch of equal ones and one of ragged ones in turn, one of each at least."""
    assert case.siblings is not None
    reference, begin = reference_core(), time.perf_counter()
    verified, drafted = [Agreement()], [Agreement()]
    for trees in cycle((FIXED, RAGGED)):
        if len(verified) > 2 and total([*verified, *drafted]).num_decisions >= num_decisions:
            break
        width = max(map(len, trees))
        shape = replace(shape_of(case, config), num_draft_tokens=width, one_hot=case.one_hot)
        shape = replace(shape, num_requests=min(shape.num_requests, MAX_TREES))
        batch = drafted_trees(shape, trees, case.siblings, tested, generator)
        drafted.append(compare_children(tested, reference, batch.drafts))
        verified.append(compare_verify(tested, reference, batch.inputs, probe(case.method, width)))
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
