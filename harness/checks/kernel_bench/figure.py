"""The roofline of the kernel benchmark: time against the bytes needed, with the line that the read bandwidth allows.

Made from the results alone; matplotlib is imported when it is drawn.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.checks.kernel_bench.records import CORE_NAMES, KernelResults, Measurement
from harness.checks.kernel_bench.report import NO_MEASUREMENT
from harness.checks.timing.measured import Machine
from harness.report.figures.style import LOOKS, RC, SPARE_LOOKS, Look
from harness.report.figures.write import save_figure

FILE_NAME = "roofline.png"
WORK_LOOKS = {"draw": SPARE_LOOKS[0], "coupled_draw": SPARE_LOOKS[1]}
PEER_LOOKS = {
    "eager torch": Look("#888888", "x", "none"),
    "torch.compile": Look("#888888", "+", "none"),
    "FlashInfer": Look("#888888", "1", "none"),
}
SIZE_INCHES = (7.4, 5.2)


def write_figure(results: KernelResults, folder: Path) -> Path:
    """Draw the roofline into a folder; returns its path.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(RC):
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        axes = figure.subplots()
        for label, look, measurements in _series(results):
            _points(axes, label, look, measurements)
        _roofline(axes, results)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("bytes needed (MB)")
        axes.set_ylabel("time (us), median and quartiles")
        axes.set_title(_title(results.machine))
        figure.legend(loc="outside lower center", ncols=4, fontsize=8)
        path = folder / FILE_NAME
        path.parent.mkdir(parents=True, exist_ok=True)
        save_figure(figure, path)
    return path


def _title(machine: Machine) -> str:
    if not machine.is_measurement:
        return NO_MEASUREMENT.partition(":")[0] + ": no measurement"
    return f"Sampling core, {machine.device}, CUDA graph, cold L2"


def _series(results: KernelResults) -> list[tuple[str, Look, list[Measurement]]]:
    """Label, look and measurements: methods of the core, cut ones apart, then peers."""
    found: dict[str, tuple[Look, list[Measurement]]] = {}
    for each in results.measurements:
        if each.timing is None or not each.bytes_needed:
            continue
        if each.implementation in CORE_NAMES:
            name = each.case.method_name
            look = LOOKS.get(name) or WORK_LOOKS[name]
            label = name.replace("_", " ") + ("" if each.case.truncation.value == "off" else ", truncated")
        else:
            label, look = each.implementation, PEER_LOOKS[each.implementation]
        found.setdefault(label, (look, []))[1].append(each)
    return [(label, look, items) for label, (look, items) in found.items()]


def _points(axes: Any, label: str, look: Look, measurements: list[Measurement]) -> None:
    """Hollow markers where the rows are truncated."""
    timings = [each.timing for each in measurements if each.timing is not None]
    axes.errorbar(
        [(each.bytes_needed or 0) / 1e6 for each in measurements],
        [timing.median_us for timing in timings],
        yerr=[
            [timing.median_us - timing.lower_us for timing in timings],
            [timing.upper_us - timing.median_us for timing in timings],
        ],
        label=label,
        color=look.color,
        marker=look.marker,
        linestyle="none",
        elinewidth=0.8,
        markerfacecolor="none" if label.endswith("truncated") else look.color,
    )


def _roofline(axes: Any, results: KernelResults) -> None:
    """Empty graph and bytes over bandwidth, from the smallest case to the largest."""
    machine = results.machine
    sizes = [each.bytes_needed for each in results.measurements if each.timing is not None and each.bytes_needed]
    if machine.read_bandwidth is None or machine.empty_graph_us is None or not sizes:
        return
    low, high = min(sizes), max(sizes)
    places = [low * (high / low) ** (step / 60) for step in range(61)]
    times = [1e6 * place / machine.read_bandwidth + machine.empty_graph_us for place in places]
    label = f"roofline: {machine.read_bandwidth / 1e12:.2f} TB/s"
    axes.plot([place / 1e6 for place in places], times, color="#000000", linewidth=1.0, label=label)
