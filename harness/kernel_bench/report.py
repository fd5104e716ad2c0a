"""Tables of the kernel benchmark, made from its results alone."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.kernel_bench.case import TRUNCATION_NAMES, Case
from harness.kernel_bench.columns import KERNEL_COLUMNS
from harness.kernel_bench.goals import CORE_NAMES, bytes_per_second, core_measurements, goals
from harness.kernel_bench.records import KernelResults, Measurement, Status
from harness.records.files import write_atomically
from harness.timing.measured import Machine, Timing

MARKDOWN, CSV = "table.md", "table.csv"
NONE = "–"
NO_MEASUREMENT = "Run on a CPU with the reference core, to show that everything runs: the times are no measurement."
CORE_HEADER = (
    *(
        "method",
        "R",
        "K",
        "V",
        "dtype",
        "T",
        "truncation",
        "drafter",
        "accepted",
        "time (us)",
        "quartiles (us)",
        "again (us)",
    ),
    *("floor (us)", "needed (MB)", "TB/s", "of ceiling", "all rows, equivalent (MB)", "TB/s", "of ceiling"),
    *("workspace (kB)", "of logits", "extra (MB)", "launches", "agreement"),
)
PEER_HEADER = ("case", "implementation", "accepted", "time (us)", "quartiles (us)", "times the core's", "extra (MB)",
               "launches", "remark")  # fmt: skip
DEFINITIONS = (
    "R requests (rows of a draw), K draft tokens of each, V vocabulary, T temperature. Drafter: how close its logits "
    "are to the target's; low, mid and high are set for 0.3, 1.5 and 2.7 accepted tokens at K = 3 by probabilistic "
    "verification, in closed form on other rows. Accepted: mean accepted tokens per request in this batch.",
    "Rows: Zipf-like, largest logit near 20, set so that top-p 0.95 at T = 0.7 keeps about 900 of 128,256 tokens in a "
    "row of middling certainty (peaked: 60).",
    "Time: replay of a CUDA graph from a cold L2 (emptied before every repeat, outside of what is timed), between two "
    "CUDA events, so the overhead of timing is in it; median of the repeats. Again: the median of a second graph "
    "and as many repeats; differences no larger than between the two mean nothing.",
    "Needed: target rows up to the rejection, and there the pair of rows (target and draft) once more; of block, the "
    "pairs of all positions behind the last accepted one. Rows of one-hot proposals come in no "
    "pairs. All rows, equivalent: the same as if every target row were read once. Rows behind a rejection are in it "
    "though they may be skipped, so it says how fast a core without skipping would have to read, and may exceed the "
    "ceiling. MB and TB are powers of ten.",
    "Ceiling: read bandwidth measured in the same run, the best of the ways listed. Floor: needed bytes at the "
    "ceiling, and the time of an empty graph.",
    "Workspace: scratch memory that the core holds. Extra: most memory held during a call beyond its arguments, "
    "workspace and results included. Launches: kernels, copies and fills of a call, counted in its graph.",
    "–: a draw has no drafts, so no K and no accepted tokens; a workspace is held by the project's own core only; "
    "bandwidths, memory and launches are counted on a GPU only; a case that was not timed has no number.",
    "Agreement: how many of the decisions compared with the reference on the same random streams, in this batch and "
    "before it was timed, differed; all within rounding of their boundary. Peers draw with random numbers of their "
    "own.",
)


def write_report(results: KernelResults, folder: Path) -> list[Path]:
    """Write table.md and table.csv; returns their paths."""
    paths = [folder / MARKDOWN, folder / CSV]
    write_atomically(paths[0], to_markdown(results).encode())
    write_atomically(paths[1], to_csv(results).encode())
    return paths


def summary(results: KernelResults) -> str:
    """The goals that this run has an answer to, for the console."""
    lines = [] if results.machine.is_measurement else [NO_MEASUREMENT]
    if results.machine.is_measurement:
        lines += [f"{'met   ' if goal.met else 'MISSED'} {goal.what}: {goal.found} (goal {goal.wanted})"
                  for goal in goals(results)]  # fmt: skip
    counts = {status: sum(each.status is status for each in results.measurements) for status in Status}
    lines.append(", ".join(f"{count} {status.value}" for status, count in counts.items() if count))
    return "\n".join(lines)


def to_markdown(results: KernelResults) -> str:
    """The whole report."""
    parts = ["# The sampling core: time, bytes and memory", ""]
    parts += [NO_MEASUREMENT if not results.machine.is_measurement else _about(results.machine), ""]
    listed = goals(results) if results.machine.is_measurement else []
    if listed:
        rows = [(goal.what, goal.wanted, goal.found, "yes" if goal.met else "**no**") for goal in listed]
        parts += ["## Goals", "", *_table(("what", "goal", "measured", "met"), rows), ""]
    core = core_measurements(results)
    if core:
        parts += ["## The core", "", *_table(CORE_HEADER, [core_row(each, results.machine) for each in core]), ""]
    peers = _peer_rows(results)
    if peers:
        parts += ["## Beside other implementations", "", *_table(PEER_HEADER, peers), ""]
    for question in dict.fromkeys(variant.question for variant in results.variants):
        parts += [f"## {question[0].upper()}{question[1:]}?", "", *_question(results, question), ""]
    left_out = [each for each in results.measurements if each.status is not Status.measured]
    if left_out:
        rows = [(each.case.name, each.implementation, each.status.value, each.reason) for each in left_out]
        parts += ["## Not measured", "", *_table(("case", "implementation", "what", "why"), rows), ""]
    parts += ["## How to read it", "", *(f"- {text}" for text in DEFINITIONS), ""]
    source = {"settings": results.settings, "wall_s": round(results.wall_s, 1), "provenance": results.provenance}
    parts += ["## Where it comes from", "", "```json", json.dumps(source, indent=1), "```", ""]
    return "\n".join(parts)


def _question(results: KernelResults, question: str) -> list[str]:
    """The table that answers it."""
    rows = [
        (
            str(each.num_requests),
            each.name,
            *_times(each.timing),
            _number(each.extra_bytes, 1e6, 2),
            _number(each.num_launches),
        )
        for each in results.variants
        if each.question == question
    ]
    return _table(("R", "variant", "time (us)", "quartiles (us)", "extra (MB)", "launches"), rows)


def _about(machine: Machine) -> str:
    assert machine.read_ways and machine.empty_graph_us is not None and machine.one_kernel_us is not None
    ways = sorted(machine.read_ways.items(), key=lambda item: -item[1])
    best = ", ".join(f"{name} {value / 1e12:.2f}" for name, value in ways)
    return (
        f"{machine.device}. Ceiling: {ways[0][1] / 1e12:.2f} TB/s read (ways of reading, TB/s: {best}). An empty graph "
        f"takes {machine.empty_graph_us:.1f} us, one small kernel {machine.one_kernel_us:.1f} us. L2 "
        f"({(machine.l2_bytes or 0) / 1e6:.0f} MB) emptied by a {machine.flush}."
    )


def floor_us(measurement: Measurement, machine: Machine) -> float | None:
    """The shortest time that the needed bytes allow."""
    ceiling, overhead, needed = machine.read_bandwidth, machine.empty_graph_us, measurement.bytes_needed
    if ceiling is None or overhead is None or needed is None:
        return None
    return 1e6 * needed / ceiling + overhead


def core_row(measurement: Measurement, machine: Machine) -> tuple[str, ...]:
    """One line of the table of the core."""
    case, agreement = measurement.case, measurement.agreement
    workspace = measurement.workspace_bytes
    told = NONE if agreement is None else f"{agreement.num_disagreements} of {agreement.num_decisions}"
    return (
        *_case_cells(case),
        NONE if measurement.mean_accepted is None else f"{measurement.mean_accepted:.2f}",
        *_times(measurement.timing),
        _number(measurement.again_us, 1, 1),
        _number(floor_us(measurement, machine), 1, 1),
        *_moved(measurement, measurement.bytes_needed, machine),
        *_moved(measurement, measurement.bytes_all_rows, machine),
        _number(workspace, 1e3, 0),
        NONE if workspace is None else f"{100 * workspace / case.logits_bytes:.2f} %",
        _number(measurement.extra_bytes, 1e6, 2),
        _number(measurement.num_launches),
        told,
    )


def _case_cells(case: Case) -> tuple[str, ...]:
    drafter = case.acceptance.value if case.width else NONE
    details = [] if case.draft_sampling.value != "greedy" or not case.width else ["one-hot"]
    details += [] if case.rows.value == "wide" else [f"{case.rows.value} rows"]
    return (
        case.method_name,
        str(case.num_requests),
        str(case.width) if case.width else NONE,
        f"{case.vocab_size:,}",
        case.dtype.value,
        f"{case.temperature:g}",
        TRUNCATION_NAMES[case.truncation],
        ", ".join([drafter, *details]),
    )


def _times(timing: Timing | None) -> tuple[str, str]:
    if timing is None:
        return NONE, NONE
    return f"{timing.median_us:.1f}", f"{timing.lower_us:.1f} to {timing.upper_us:.1f}"


def _moved(measurement: Measurement, num_bytes: int | None, machine: Machine) -> tuple[str, str, str]:
    speed, ceiling = bytes_per_second(num_bytes, measurement), machine.read_bandwidth
    if speed is None or ceiling is None:
        return _number(num_bytes, 1e6, 1), NONE, NONE
    return _number(num_bytes, 1e6, 1), f"{speed / 1e12:.2f}", f"{100 * speed / ceiling:.0f} %"


def _number(value: float | None, unit: float = 1, decimals: int = 0) -> str:
    return NONE if value is None else f"{value / unit:,.{decimals}f}"


def _peer_rows(results: KernelResults) -> list[tuple[str, ...]]:
    """The peers' lines, each case's core above them."""
    core = {each.case: each for each in core_measurements(results)}
    others = [each for each in results.measurements if each.implementation not in CORE_NAMES and each.timing]
    rows: list[tuple[str, ...]] = []
    for case in dict.fromkeys(each.case for each in others):
        for each in [core[case], *(other for other in others if other.case == case)]:
            own, timing = core[case].timing, each.timing
            assert own is not None and timing is not None
            accepted = NONE if each.mean_accepted is None else f"{each.mean_accepted:.2f}"
            ratio = f"{timing.median_us / own.median_us:.1f}"
            extra = _number(each.extra_bytes, 1e6, 2)
            rows.append((case.name, each.implementation, accepted, *_times(timing), ratio, extra,
                         _number(each.num_launches), each.reason))  # fmt: skip
    return rows


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in [header, ["---"] * len(header), *rows]]


def to_csv(results: KernelResults) -> str:
    """One row per measurement with all digits; empty where there is no value."""
    rows = [_flat(each, results.machine) for each in results.measurements]
    stream = io.StringIO()
    writer = csv.DictWriter(stream, fieldnames=list(KERNEL_COLUMNS), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def _flat(each: Measurement, machine: Machine) -> dict[str, Any]:
    case, timing, agreement = each.case, each.timing, each.agreement
    return {
        "work": case.work.value,
        "method": case.method_name,
        "num_requests": case.num_requests,
        "num_speculative_tokens": case.width,
        "vocab_size": case.vocab_size,
        "dtype": case.dtype.value,
        "temperature": case.temperature,
        "truncation": case.truncation.value,
        "acceptance": case.acceptance.value if case.width else None,
        "draft_sampling": case.draft_sampling.value if case.width else None,
        "rows": case.rows.value,
        "implementation": each.implementation,
        "status": each.status.value,
        "reason": each.reason,
        "is_measurement": machine.is_measurement,
        "mean_accepted": each.mean_accepted,
        "median_us": timing and timing.median_us,
        "lower_quartile_us": timing and timing.lower_us,
        "upper_quartile_us": timing and timing.upper_us,
        "min_us": timing and timing.min_us,
        "again_us": each.again_us,
        "num_repeats": timing and timing.num_repeats,
        "in_graph": timing and timing.in_graph,
        "floor_us": floor_us(each, machine),
        "bytes_needed": each.bytes_needed,
        "bytes_all_rows": each.bytes_all_rows,
        "read_bandwidth_bytes_per_s": machine.read_bandwidth,
        "logits_bytes": case.logits_bytes,
        "workspace_bytes": each.workspace_bytes,
        "extra_bytes": each.extra_bytes,
        "num_launches": each.num_launches,
        "num_compared_decisions": agreement and agreement.num_decisions,
        "num_disagreements": agreement and agreement.num_disagreements,
    }
