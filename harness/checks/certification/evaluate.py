"""Simulate one lossless case or one control and test the law of its output.

Nothing is carried over from one case to the next: its result depends on the case and the settings alone.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from harness.checks.certification.cases import DTYPES, Case
from harness.checks.certification.config import CertifyConfig, Size
from harness.checks.certification.controls import Control
from harness.checks.certification.goodness_of_fit import Fit, detectable_variation, fit, power_at, samples_needed
from harness.checks.certification.simulate import Simulated, simulate
from harness.checks.certification.subject import Subject, project_core
from harness.checks.certification.toy_models import exact_law

FALSE_ALARM = 1e-6
"""Probability that any lossless case of a subject without a flaw fails."""
RESERVE = 10
"""Pearson's statistic has a heavier far tail than the chi-square law. Simulated with MIN_EXPECTED expected in every
sequence it was up to 1.5 times as heavy at 1e-5; the reserve covers what that becomes further out."""
VARIATION, POWER = 0.003, 0.99
"""At size full every case but those in a spread vocabulary detects this total variation with more than this
probability, wherever it lies. Where requests take several profiles in turn it is the mean over the profiles: their
statistics add up to a noncentrality of 4 n times the mean square of the profiles' variations, which is at least the
square of their mean. One profile of G alone must be off by sqrt(G) times as much to show as surely."""
FULL_POWER = 0.999
"""What the samples of size full are chosen for."""
SMALL_SAMPLES, SMALL_BATCH = 150_000, 37_500
TREE_SMALL_SAMPLES = 50_000
"""Of cases and controls with trees, whose rounds take several times as long; the report gives their power."""
CONTROL_SAMPLES = 1_000_000
FULL_BATCH, LARGE_BATCH, LARGE_MEMORY_BYTES = 2**18, 2**20, 96 * 2**30
"""Requests in flight on a GPU, and on one with so much memory: with fewer it waits for the host. At LARGE_BATCH a
process was seen to hold up to 6.6 GiB, buffers kept from earlier cases included."""
SPREAD_SMALL_SAMPLES, SPREAD_FULL_SAMPLES = 3_000, 500_000
"""Of cases in a spread vocabulary, whose rows are a thousand times as long; the report gives their power."""
SPREAD_SMALL_BATCH, SPREAD_FULL_BATCH = 1024, 4096
"""0.5 GB of logits at most."""
SPREAD_TREE_FULL_SAMPLES, SPREAD_TREE_BATCH = 20_000, 64
"""The same with trees. Programs share a request only where all of a batch run at once (kernels.tree.walk): with 64
requests, each has four of the 264 programs or more that an H100 holds."""


class CaseVerdict(Enum):
    """The outcome of a case."""

    passed = "pass"
    failed = "FAIL"
    rejected = "rejected"
    not_rejected = "NOT REJECTED"
    unsupported = "not supported"


@dataclass(frozen=True)
class Outcome:
    """The result of one case or control."""

    name: str
    verdict: CaseVerdict
    reason: str = ""
    """Why a case failed or was not simulated."""
    fit: Fit | None = None
    confirmation: Fit | None = None
    """Of a case whose law differs: the same once more, with the next seed."""
    num_faults: int = 0
    acceptance_rate: float = 0.0
    """Accepted draft tokens / draft tokens."""
    power: float = 0.0
    """Probability to detect a total variation of VARIATION in this many samples."""
    detectable: float = 0.0
    """The total variation that is detected with probability POWER; the mean over the profiles."""
    num_profiles: int = 1
    """Sampling parameters that the requests took in turn."""
    is_spread: bool = False
    """Whether its vocabulary was spread, and its samples few."""
    wall_s: float = 0.0

    @property
    def is_control(self) -> bool:
        return self.verdict in (CaseVerdict.rejected, CaseVerdict.not_rejected)

    @property
    def is_well(self) -> bool:
        """Whether it does not stand against the subject or the test."""
        return self.verdict not in (CaseVerdict.failed, CaseVerdict.not_rejected)


@dataclass(frozen=True)
class Conditions:
    """What every case of a certification is simulated under; the same in every process."""

    config: CertifyConfig
    size: Size
    """small or full."""
    level: float
    """Of each single test."""
    device: torch.device


def laws(case: Case) -> Tensor:
    """[G, N] float64, the exact law of each profile's requests."""
    models = case.models.in_dtype(DTYPES[case.dtype])
    return torch.stack([exact_law(models, profile, case.edits) for profile in case.profiles])


def evaluate(subject: Subject, job: Case | Control, conditions: Conditions) -> Outcome:
    """Simulate and test one case or control.

    Args:
        subject: the sampling core under test; a control is made from the project's own core.
        job: what to simulate.
        conditions: of the certification.
    """
    started, level, config = time.perf_counter(), conditions.level, conditions.config
    if isinstance(job, Control):
        case, subject, is_control = job.case, job.alter(project_core(conditions.device)), True
        samples = config.samples or control_samples(conditions.size)
        if case.drafts_trees and not config.samples and conditions.size is Size.small:
            samples = TREE_SMALL_SAMPLES
    else:
        case, samples, is_control = job, _samples(job, conditions), False
    batch, device = _batch(case, conditions), conditions.device
    simulated = simulate(subject, case, samples, batch, config.seed, device)
    found = fit(simulated.counts, laws(case))
    reasons = [] if is_control else _reasons(simulated, found, level)
    confirmation = None
    if reasons and found.p_value < level:
        confirmation = fit(simulate(subject, case, samples, batch, config.seed + 1, device).counts, laws(case))
        is_same = confirmation.p_value < level
        reasons += [f"{'confirmed' if is_same else 'not confirmed'} with seed {config.seed + 1}"]
    if is_control:
        verdict = CaseVerdict.rejected if found.p_value < level else CaseVerdict.not_rejected
    else:
        verdict = CaseVerdict.failed if reasons else CaseVerdict.passed
    return Outcome(
        name=job.name,
        verdict=verdict,
        reason="; ".join(reasons),
        fit=found,
        confirmation=confirmation,
        num_faults=simulated.num_faults,
        acceptance_rate=simulated.num_accepted / max(1, simulated.num_draft_tokens),
        power=power_at(VARIATION, found.num_samples, level, found.df),
        detectable=detectable_variation(found.num_samples, level, found.df, POWER),
        num_profiles=len(case.profiles),
        is_spread=case.is_spread,
        wall_s=time.perf_counter() - started,
    )


def control_samples(size: Size) -> int:
    """Samples of a control, unless the settings say otherwise."""
    return CONTROL_SAMPLES if size is Size.full else SMALL_SAMPLES


def _samples(case: Case, conditions: Conditions) -> int:
    if conditions.config.samples:
        return conditions.config.samples
    if case.is_spread and case.drafts_trees and conditions.size is Size.full:
        return SPREAD_TREE_FULL_SAMPLES
    if case.is_spread:
        return SPREAD_SMALL_SAMPLES if conditions.size is Size.small else SPREAD_FULL_SAMPLES
    if conditions.size is Size.small:
        return TREE_SMALL_SAMPLES if case.drafts_trees else SMALL_SAMPLES
    law = laws(case)
    df = int((law > 0).sum()) - len(law)
    return samples_needed(VARIATION, conditions.level, df, FULL_POWER)


def _batch(case: Case, conditions: Conditions) -> int:
    """Requests in flight. It must not depend on the number of workers, because the number of samples depends on it."""
    if conditions.device.type == "cuda":
        is_large = torch.cuda.get_device_properties(conditions.device).total_memory >= LARGE_MEMORY_BYTES
        usual, max_spread = LARGE_BATCH if is_large else FULL_BATCH, SPREAD_FULL_BATCH
    else:
        usual, max_spread = SMALL_BATCH, SPREAD_SMALL_BATCH
    batch = conditions.config.batch or usual
    if case.is_spread and case.drafts_trees:
        max_spread = SPREAD_TREE_BATCH
    return min(batch, max_spread) if case.is_spread else batch


def _reasons(simulated: Simulated, found: Fit, level: float) -> list[str]:
    """Why a lossless case fails; empty when it passes."""
    reasons = []
    if simulated.num_faults:
        reasons.append(f"{simulated.num_faults} verdicts flagged or malformed, or inputs overwritten")
    if found.num_impossible:
        reasons.append(f"{found.num_impossible} sequences that the target cannot produce")
    if found.p_value < level and not found.num_impossible:
        reasons.append("another law than the target's")
    return reasons
