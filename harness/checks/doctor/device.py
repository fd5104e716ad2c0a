"""The device: whether torch and Triton compute on it, what holds it down, and what the sampling core does on it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

from harness.checks.doctor.finding import Finding, problem, remark
from harness.records.provenance import provenance
from harness.records.without_torch import VISIBLE, why_no_gpu

LEAST_CAPABILITY = (8, 0)
"""Of GPUs whose kernels are compiled and tested."""
SLOWED = ("hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown", "application_clocks")
"""Clock reasons under which a speed is not that of the GPU."""
LEAST_SHARE = 0.6
"""Of the roofline at 256 requests, below which the sampling core is slower than on any GPU that it was measured on."""
CASES = "sampled cached, float32, none"
"""In the names of the cases of the short certification: ten seconds of a CPU core, with their controls."""


def look_at_device(device: str) -> Iterator[Finding]:
    """Findings about a device.

    Args:
        device: auto, cpu or cuda.
    """
    import torch

    reason = why_no_gpu(os.environ.get(VISIBLE))
    if torch.cuda.is_available() and device != "cpu":
        yield from _gpu()
        name = "cuda"
    else:
        name = "cpu"
        yield from _no_gpu(reason, device)
    yield _certified(name)
    if name == "cuda":
        yield from _speed()


def _no_gpu(reason: str | None, device: str) -> Iterator[Finding]:
    import torch

    if device == "cpu":
        return
    if reason is None:
        yield problem(
            "GPU",
            f"there is one, and torch {torch.__version__} (CUDA {torch.version.cuda or 'none'}) does not see it",
            "look at nvidia-smi: the driver may be older than torch's CUDA, or the GPU is not passed to this container",
        )
        return
    yield remark(
        "GPU",
        f"none: {reason}; everything runs on the CPU by the reference core, and speeds are those of a CPU",
        f"{_how_to_get_one(torch.__version__)}; acceptance and certification are the same on any device",
    )


def _how_to_get_one(version: str) -> str:
    built = "+cpu" in version
    return (
        "if there is an NVIDIA GPU here: remove .venv and install again with torch's default build (no PIP_FLAGS)"
        if built
        else "nothing, if that is what you want"
    )


def _gpu() -> Iterator[Finding]:
    import torch

    from harness.runner.gpu_watch import own_gpu

    torch.cuda.init()
    index = torch.cuda.current_device()
    about = torch.cuda.get_device_properties(index)
    capability = torch.cuda.get_device_capability(index)
    driver = provenance()["gpu"]["driver"] or "not known (no nvidia-smi)"
    named = f"{about.name}, compute capability {capability[0]}.{capability[1]}, driver {driver}, "
    named += f"CUDA {torch.version.cuda} of torch"
    if capability < LEAST_CAPABILITY:
        yield problem(
            "GPU", named, "kernels are compiled and tested from 8.0 (A100) on; use a newer GPU, or backend.device=cpu"
        )
    else:
        yield Finding("GPU", named)
    free, total = torch.cuda.mem_get_info(index)
    found = f"{free / 1e9:.1f} of {total / 1e9:.1f} GB are free"
    if free < 0.9 * total:
        yield remark("GPU memory", found, "something else holds the rest; nvidia-smi names it")
    else:
        yield Finding("GPU memory", found)
    gpu = own_gpu()
    sample = None if gpu is None else gpu.sample()
    if sample is None:
        why = "" if gpu is None else "; ".join(gpu.unknown.values())
        yield remark(
            "clocks",
            f"not known ({why}): a report cannot say whether the GPU was slowed",
            "watch nvidia-smi while you measure",
        )
        return
    others = sample.num_other_processes
    if others:
        yield remark(
            "GPU",
            f"{others} other processes compute on it",
            "nvidia-smi names them; stop them, or wait, before you measure speed",
        )
    held = [name for name in sample.reasons or () if name in SLOWED]
    clocks = f"{sample.sm_clock_mhz} MHz, memory {sample.memory_clock_mhz} MHz"
    if held:
        yield problem(
            "clocks",
            f"{clocks}, held down by {', '.join(held)}",
            "nvidia-smi -q -d PERFORMANCE says why; let it cool, raise its power limit, or nvidia-smi -rgc",
        )
    else:
        yield Finding("clocks", f"{clocks}, held down by nothing")


def _certified(device: str) -> Finding:
    """A short certification of the core on this very device: one lossless method and its controls."""
    from harness.checks.certification.certify import certify
    from harness.checks.certification.config import CertifyConfig, Size
    from harness.checks.certification.report import headline
    from harness.config.device import Device

    config = CertifyConfig(device=Device(device), size=Size.small, methods=("probabilistic",), workers=1, cells=CASES)
    try:
        result = certify(config, lambda outcome: None)
    except Exception as error:
        # whatever a compiler or a driver raises is what is wrong here
        return problem(
            "sampling core",
            f"it does not run here: {type(error).__name__}: {error}",
            f"mend what stands above; rejection-lab certify --device {device} --debug shows where it fails",
        )
    found = f"{headline(result)} (controls: broken copies, which must be rejected; {result.wall_s:.0f} s)"
    if result.is_green:
        return Finding("sampling core", found)
    return problem(
        "sampling core",
        found,
        "its output is not the target's here: trust no number of this machine; "
        f"rejection-lab certify --device {device} says which case fails",
    )


def _speed() -> Iterator[Finding]:
    """One verification beside the time in which its rows can be read."""
    import torch

    from harness.checks.kernel_bench.cases import CENTRE
    from harness.checks.kernel_bench.measure import inputs_of, measure
    from harness.checks.timing.bandwidth import machine_of
    from harness.checks.timing.clock import clock_for
    from kernels.core import core_for

    device = torch.device("cuda", torch.cuda.current_device())
    clock, core = clock_for(device, 50, "write"), core_for(device)
    machine = machine_of(clock, device)
    bandwidth = machine.read_bandwidth
    assert bandwidth is not None, "a GPU"
    case = replace(CENTRE, num_requests=256)
    measured, _ = measure(case, core, inputs_of(case, core, 0, device), clock, 16)
    assert measured.timing is not None and measured.bytes_all_rows is not None
    bound_us = 1e6 * measured.bytes_all_rows / bandwidth
    share = bound_us / measured.timing.median_us
    found = (
        f"verification of 256 requests, K=3, 128,256 tokens: {measured.timing.median_us:.0f} us, {share:.0%} of the "
        f"speed of this GPU's memory ({bandwidth / 1e12:.2f} TB/s as read here)"
    )
    if share < LEAST_SHARE:
        yield problem("speed", found, "something else computes on the GPU, or it is slowed; look again when it is idle")
    else:
        yield Finding("speed", found)
