"""The whole benchmark: ceiling, cases, peers and questions, one after another, with a line for each as it is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace

import torch

from harness.checks.kernel_bench.case import Case
from harness.checks.kernel_bench.cases import CENTRE, HEADLINE_REQUESTS, cases_of, chosen_cases, headline_cases
from harness.checks.kernel_bench.check import Disagreement
from harness.checks.kernel_bench.config import BenchConfig, Preset
from harness.checks.kernel_bench.measure import inputs_of, measure
from harness.checks.kernel_bench.peers import first_line, measure_peer, peers_of
from harness.checks.kernel_bench.questions import variants_of
from harness.checks.kernel_bench.records import KernelResults, Measurement, Status, Variant
from harness.checks.timing.bandwidth import machine_of
from harness.checks.timing.clock import Clock, clock_for
from harness.checks.timing.measured import Machine
from harness.config.device import Device
from harness.config.identity import plain_values
from harness.records.provenance import provenance
from kernels.core import core_for

Report = Callable[[str], None]
BYTES_BESIDE = 4 * 2**30
"""Taken beside a case's logits: rows in float32 while they are made, and the reference's in float64."""


def run_bench(config: BenchConfig, report: Report) -> KernelResults:
    """Measure everything that the settings ask for.

    Args:
        config: the settings.
        report: takes a line about every step as it is done.

    Raises:
        ValueError: there is no GPU, or no case is left.
        Disagreement: the core does not agree with the reference; nothing is to be reported.
    """
    start = time.perf_counter()
    device = device_of(config)
    cases = chosen_cases(config)
    clock = clock_for(device, config.repeats, config.flush.value)
    machine = machine_of(clock, device)
    report(_about(machine))
    measurements: list[Measurement] = []
    for index, case in enumerate(cases, start=1):
        if _is_over(config, start):
            reason = f"not begun within --limit-s {config.limit_s:g}"
            measurements.append(Measurement(case, core_for(device).name, Status.skipped, reason))
            continue
        for found in measurements_of(case, config, clock, device):
            report(f"[{index}/{len(cases)}] {_line(found)}")
            measurements.append(found)
    asked = config.questions and not config.case and not _is_over(config, start)
    variants = list(_variants(config, clock, device, report)) if asked else []
    return KernelResults(
        settings=plain_values(asdict(config)),
        machine=machine,
        measurements=tuple(measurements),
        variants=tuple(variants),
        provenance=provenance(sampling_core=core_for(device).name),
        wall_s=time.perf_counter() - start,
    )


def _is_over(config: BenchConfig, start: float) -> bool:
    """Whether the time is up in which a case may begin."""
    return 0 < config.limit_s <= time.perf_counter() - start


def device_name(config: BenchConfig) -> str:
    """As results and histories have it; raises ValueError as `device_of` does."""
    device = device_of(config)
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def device_of(config: BenchConfig) -> torch.device:
    """The device of the settings; raises ValueError without a GPU, unless the CPU was asked for by name."""
    if config.device is Device.cpu:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ValueError(
            "the kernel benchmark needs a GPU, and torch sees none; "
            "--preset smoke --device cpu shows without one that everything runs"
        )
    return torch.device("cuda", torch.cuda.current_device())


def measurements_of(case: Case, config: BenchConfig, clock: Clock, device: torch.device) -> Iterator[Measurement]:
    """The core, then its peers where the case has any; a failure is written down and the next case goes on.

    Raises:
        Disagreement: the core does not agree with the reference.
    """
    missing = _missing_memory(case, device)
    name = core_for(device).name
    if missing:
        yield Measurement(case, name, Status.skipped, missing)
        return
    try:
        inputs = inputs_of(case, core_for(device), config.seed, device)
        # the drafts were drawn with this workspace; the case gets one of its own
        measurement, counts = measure(case, core_for(device), inputs, clock, config.checked)
    except Disagreement:
        raise
    except torch.OutOfMemoryError as error:
        yield Measurement(case, name, Status.skipped, first_line(error))
        return
    except Exception as error:
        yield Measurement(case, name, Status.failed, first_line(error))
        return
    yield measurement
    with_torch = case in headline_cases() or config.preset is Preset.smoke
    if config.peers and (with_torch or config.preset is Preset.noise):
        for peer in peers_of(case, device, with_torch):
            yield measure_peer(case, peer, inputs, counts, clock)


def _missing_memory(case: Case, device: torch.device) -> str:
    """Why the case does not fit; empty if it does."""
    if device.type != "cuda":
        return ""
    free, _ = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    needed = case.logits_bytes + BYTES_BESIDE
    return f"needs {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free" if needed > free else ""


def _variants(config: BenchConfig, clock: Clock, device: torch.device, report: Report) -> Iterator[Variant]:
    cases = [replace(CENTRE, num_requests=count) for count in HEADLINE_REQUESTS]
    if config.preset is Preset.smoke:
        cases = list(cases_of(Preset.smoke)[:1])
    for case in cases:
        for variant in variants_of(case, clock, config.seed, device):
            report(f"[question] R={case.num_requests} {variant.name}: {variant.timing.median_us:.1f} us")
            yield variant


def _about(machine: Machine) -> str:
    if machine.read_bandwidth is None:
        return "on a CPU: this shows that the benchmark runs, and measures nothing"
    return (
        f"{machine.device}: reads {machine.read_bandwidth / 1e12:.2f} TB/s, an empty graph takes "
        f"{machine.empty_graph_us:.1f} us, one small kernel {machine.one_kernel_us:.1f} us"
    )


def _line(found: Measurement) -> str:
    start = f"{found.case.name}, {found.implementation}: "
    if found.timing is None:
        return f"{start}{found.status.value}, {found.reason}"
    timing = found.timing
    accepted = "" if found.mean_accepted is None else f", {found.mean_accepted:.2f} accepted"
    warm = "" if found.warm_us is None else f", {found.warm_us:.1f} warm"
    return f"{start}{timing.median_us:.1f} us [{timing.lower_us:.1f}, {timing.upper_us:.1f}]{warm}{accepted}"
