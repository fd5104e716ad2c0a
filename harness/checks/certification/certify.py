"""Certify a subject: simulate every case and every control, and test them at one family-wise level.

Bonferroni: each lossless case is tested at FALSE_ALARM / RESERVE / (number of lossless cases), so that a subject
without a flaw fails the whole certification with probability FALSE_ALARM at most. Controls are held to the same level.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from harness.checks.certification.config import CertifyConfig, Size
from harness.checks.certification.controls import Control
from harness.checks.certification.evaluate import FALSE_ALARM, RESERVE, CaseVerdict, Conditions, Outcome, evaluate
from harness.checks.certification.jobs import chosen_jobs
from harness.checks.certification.subject import features_of, load_subject
from harness.checks.certification.workers import device_of, evaluate_in_workers
from harness.config.device import resolve_device

MAX_WORKERS, SPARE_CPUS = 12, 2
"""Processes on a GPU unless the settings say otherwise: compiling kernels keeps one CPU core busy in each. What each
takes of the GPU's memory is said beside LARGE_BATCH in evaluate.py."""
JOBS_A_CPU_WORKER = 10
"""Jobs from which on another process on a CPU is worth its start of about 3 s."""


@dataclass(frozen=True)
class Certification:
    """Everything that a certification found."""

    config: CertifyConfig
    size: Size
    device: str
    subject: str
    remark: str
    level: float
    """Of each single test."""
    outcomes: tuple[Outcome, ...]
    num_workers: int
    """Processes that simulated."""
    wall_s: float

    @property
    def num_tested(self) -> int:
        """Lossless cases that the subject supports."""
        return sum(outcome.verdict in (CaseVerdict.passed, CaseVerdict.failed) for outcome in self.outcomes)

    @property
    def is_green(self) -> bool:
        """Whether something was certified, and nothing stands against the subject or the test."""
        passed = any(outcome.verdict is CaseVerdict.passed for outcome in self.outcomes)
        return passed and all(outcome.is_well for outcome in self.outcomes)


def resolve_workers(choice: int, device: torch.device, num_jobs: int) -> int:
    """Number of processes for `num_jobs` cases and controls; `choice` 0 takes what suits the device."""
    num_cpus = os.cpu_count() or 1
    if choice:
        num_workers = choice
    elif device.type == "cuda":
        num_workers = min(MAX_WORKERS, num_cpus - SPARE_CPUS)
    else:
        num_workers = min(num_cpus, num_jobs // JOBS_A_CPU_WORKER)
    return max(1, min(num_workers, num_jobs))


def certify(config: CertifyConfig, report: Callable[[Outcome], None]) -> Certification:
    """Simulate and evaluate everything.

    Args:
        config: the settings.
        report: called with each outcome as it comes, in any order.

    Raises:
        SettingsError: wrong settings, before anything is simulated.
        WorkerError: a worker process died or raised an error.
    """
    # On tensors this small a second thread gains nothing, and on a busy machine the two wait for each other.
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _certify(config, report, resolve_device(config.device.value, "--device"))
    finally:
        torch.set_num_threads(num_threads)


def _certify(config: CertifyConfig, report: Callable[[Outcome], None], device: torch.device) -> Certification:
    began = time.perf_counter()
    size = config.size if config.size is not Size.auto else Size.full if device.type == "cuda" else Size.small
    jobs = chosen_jobs(config, size)
    subject = load_subject(config.subject, device)
    features = features_of(subject)
    lacking = [None if isinstance(job, Control) else job.lacking(features) for job in jobs]
    num_cells = sum(reason is None and not isinstance(job, Control) for job, reason in zip(jobs, lacking, strict=True))
    conditions = Conditions(config, size, FALSE_ALARM / RESERVE / max(1, num_cells), device)
    outcomes: dict[int, Outcome] = {}

    def add(index: int, outcome: Outcome) -> None:
        outcomes[index] = outcome
        report(outcome)

    for index, reason in enumerate(lacking):
        if reason is not None:
            add(index, Outcome(jobs[index].name, CaseVerdict.unsupported, reason))
    supported = [index for index, reason in enumerate(lacking) if reason is None]
    num_workers = resolve_workers(config.workers, device, len(supported))
    simulated: Iterator[tuple[int, Outcome]]
    if num_workers == 1:
        simulated = ((index, evaluate(subject, jobs[index], conditions)) for index in supported)
    else:
        simulated = evaluate_in_workers(conditions, {index: jobs[index] for index in supported}, num_workers)
    for index, outcome in simulated:
        add(index, outcome)
    return Certification(
        config=config,
        size=size,
        device=_device_name(device, num_workers),
        subject=subject.name,
        remark=features.remark,
        level=conditions.level,
        outcomes=tuple(outcomes[index] for index in range(len(jobs))),
        num_workers=num_workers,
        wall_s=time.perf_counter() - began,
    )


def _device_name(device: torch.device, num_workers: int) -> str:
    if device.type != "cuda":
        return "cpu"
    num_gpus = len({device_of(device, number) for number in range(num_workers)})
    name = torch.cuda.get_device_name(device)
    return name if num_gpus == 1 else f"{num_gpus} x {name}"
