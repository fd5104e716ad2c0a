"""Tables of the kernel benchmark, made from its results alone."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from harness.analysis.columns import Column
from harness.checks.kernel_bench.case import TRUNCATION_NAMES, Case
from harness.checks.kernel_bench.records import CORE_NAMES, KernelResults, Measurement, Status
from harness.checks.timing.measured import Machine, Timing
from harness.config.identity import plain_values
from harness.records.files import write_atomically
from harness.report.document import Document, Section, write_document
from harness.report.number_format import PLAIN, Number, count
from harness.report.table import NONE, Entry, Table

KERNEL_COLUMNS: dict[str, Column] = {
    "work": Column("", "what was timed: verify, draw, coupled_draw"),
    "method": Column("", "verification method, or which draw it is"),
    "num_requests": Column("", "requests of a verification; rows of a draw"),
    "num_speculative_tokens": Column("tokens", "K of every request; 0 for a draw"),
    "vocab_size": Column("tokens", "vocabulary"),
    "dtype": Column("", "type of the logits"),
    "temperature": Column("", "temperature of target and draft"),
    "truncation": Column("", "what cuts both distributions: off, top_k (50), top_p (0.95), min_p (0.05)"),
    "acceptance": Column("", "how close the drafter is to the target: low, mid, high; empty for a draw"),
    "draft_sampling": Column("", "how the proposal was drawn; greedy has no draft-logit cache; empty for a draw"),
    "rows": Column("", "how far a row's probability is spread: wide, peaked, flat, or noise"),
    "keeps_statistics": Column("", "statistics of sampled draft rows were kept when they were drawn"),
    "row_gap": Column("tokens", "between the end of a row and the beginning of the next"),
    "case": Column("", "name of the case, as --case takes it"),
    "implementation": Column("", "triton or reference for the project's own core; else a peer"),
    "status": Column("", "measured, skipped or failed"),
    "reason": Column("", "why it was skipped or failed; a remark on a measured one"),
    "is_measurement": Column("", "False on a CPU, where the benchmark only shows that it runs"),
    "mean_accepted": Column("tokens", "accepted draft tokens per request in this batch; empty for a draw"),
    "median_us": Column("us", "median time of the repeats"),
    "lower_quartile_us": Column("us", "first quartile of the repeats"),
    "upper_quartile_us": Column("us", "third quartile of the repeats"),
    "min_us": Column("us", "shortest repeat"),
    "again_us": Column("us", "median of as many repeats of a second graph: differences no larger mean nothing"),
    "warm_us": Column("us", "median of repeats right after one another, from a warm L2"),
    "num_repeats": Column("", "repeats"),
    "in_graph": Column("", "replayed as a CUDA graph; if not, launches from the host are part of the time"),
    "floor_us": Column("us", "bytes_needed at the read bandwidth of the same run, and an empty graph"),
    "bytes_needed": Column("bytes", "rows that decide something: without the target rows after a rejection"),
    "bytes_all_rows": Column(
        "bytes", "as if every target row were read, also skipped ones, and the pair at each rejection once more"
    ),
    "read_bandwidth_bytes_per_s": Column("bytes/s", "best way of reading memory in the same run"),
    "logits_bytes": Column("bytes", "target rows of the batch, and its draft rows where they are cached"),
    "workspace_bytes": Column("bytes", "scratch memory that the core keeps"),
    "extra_bytes": Column(
        "bytes", "most memory held during a call beyond its arguments: workspace, temporaries, results"
    ),
    "num_launches": Column("", "kernels launched"),
    "num_compared_decisions": Column("", "decisions compared with the reference before anything was timed"),
    "num_disagreements": Column("", "of them those that differ, all within rounding of a boundary"),
}


MARKDOWN, CSV = "table.md", "table.csv"
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
        "again (us)",
        "warm (us)",
    ),
    *("roofline (us)", "needed (MB)", "TB/s", "of ceiling (%)", "all rows, equivalent (MB)", "TB/s", "of ceiling (%)"),
    *("workspace (kB)", "of logits (%)", "extra (MB)", "launches", "agreement"),
)
PEER_HEADER = (
    *("case", "implementation", "accepted", "time (us)", "times the core's", "extra (MB)", "launches", "remark"),
)
DEFINITIONS = (
    "R requests (rows of a draw), K draft tokens of each, V vocabulary, T temperature. Drafter: how close its logits "
    "are to the target's; low, mid and high are set for 0.3, 1.5 and 2.7 accepted tokens at K = 3 by probabilistic "
    "verification, in closed form on other rows. Accepted: mean accepted tokens per request in this batch.",
    "Rows: Zipf-like, largest logit near 20, set so that top-p 0.95 at T = 0.7 keeps about 900 of 128,256 tokens in a "
    "row of middling certainty (peaked: 60; flat: most of them). Noise: 3 x normal, of which it keeps about 800.",
    "Time: replay of a CUDA graph from a cold L2 (emptied before every repeat, outside of what is timed), between two "
    "CUDA events, so the overhead of timing is in it; median of the repeats, quartiles in brackets. "
    "Again: the median of a second graph and as many repeats; differences no larger than between the two mean nothing. "
    "Warm: repeats right after one another, when the L2 holds what it can of the rows.",
    "Needed: target rows up to the rejection, and there the pair of rows (target and draft) once more; of block, the "
    "pairs of all positions after the last accepted one. Rows of one-hot proposals come in no "
    "pairs. All rows, equivalent: the same as if every target row were read once. Rows after a rejection are in it "
    "though they may be skipped, so it says how fast a core without skipping would have to read, and may exceed the "
    "ceiling. MB and TB are powers of ten.",
    "Ceiling: read bandwidth measured in the same run, the best of the ways listed. Roofline: needed bytes at the "
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
    """Write table as .md, .html, .tex and .csv; returns their paths."""
    write_atomically(folder / CSV, to_csv(results).encode())
    return [*write_document(document(results), folder, Path(MARKDOWN).stem), folder / CSV]


def summary(results: KernelResults) -> str:
    """How many measurements there are, for the console."""
    num_of = {status: sum(each.status is status for each in results.measurements) for status in Status}
    lines = [] if results.machine.is_measurement else [NO_MEASUREMENT]
    lines.append(", ".join(f"{number} {status.value}" for status, number in num_of.items() if number))
    return "\n".join(lines)


def document(results: KernelResults) -> Document:
    """The whole report."""
    core = tuple(core_row(each, results.machine) for each in results.of_core)
    tables = [Table("The core", CORE_HEADER, core), Table("Beside other implementations", PEER_HEADER, _peers(results))]
    tables += [_question(results, name) for name in dict.fromkeys(each.question for each in results.variants)]
    left_out = tuple(
        (each.case.name, each.implementation, each.status.value, each.reason)
        for each in results.measurements
        if each.status is not Status.measured
    )
    tables.append(Table("Not measured", ("case", "implementation", "what", "why"), left_out))
    return Document(
        "The sampling core: time, bytes and memory",
        paragraphs=(_about(results.machine) if results.machine.is_measurement else NO_MEASUREMENT,),
        sections=tuple(Section(table.title, tables=(table,)) for table in tables if table.rows),
        definitions=DEFINITIONS,
        provenance=[
            {"settings": results.settings, "wall_s": round(results.wall_s, 1), "provenance": results.provenance}
        ],
    )


def _question(results: KernelResults, question: str) -> Table:
    """The table that answers it."""
    rows = tuple(
        (
            count(each.num_requests),
            each.name,
            _time(each.timing),
            _number(each.extra_bytes, 1e6, 2),
            _number(each.num_launches),
        )
        for each in results.variants
        if each.question == question
    )
    title = f"{question[0].upper()}{question[1:]}?"
    return Table(title, ("R", "variant", "time (us)", "extra (MB)", "launches"), rows)


def _about(machine: Machine) -> str:
    assert machine.read_ways and machine.empty_graph_us is not None and machine.one_kernel_us is not None
    ways = sorted(machine.read_ways.items(), key=lambda item: -item[1])
    best = ", ".join(f"{name} {value / 1e12:.2f}" for name, value in ways)
    return (
        f"{machine.device}. Ceiling: {ways[0][1] / 1e12:.2f} TB/s read (ways of reading, TB/s: {best}). An empty graph "
        f"takes {machine.empty_graph_us:.1f} us, one small kernel {machine.one_kernel_us:.1f} us. L2 "
        f"({(machine.l2_bytes or 0) / 1e6:.0f} MB) emptied by a {machine.flush}."
    )


def roofline_us(measurement: Measurement, machine: Machine) -> float | None:
    """The shortest time that the needed bytes allow."""
    ceiling, overhead, needed = machine.read_bandwidth, machine.empty_graph_us, measurement.bytes_needed
    if ceiling is None or overhead is None or needed is None:
        return None
    return 1e6 * needed / ceiling + overhead


def core_row(measurement: Measurement, machine: Machine) -> tuple[Entry, ...]:
    """One line of the table of the core."""
    case, agreement = measurement.case, measurement.agreement
    workspace = measurement.workspace_bytes
    told = NONE if agreement is None else f"{agreement.num_disagreements} of {agreement.num_decisions}"
    return (
        *_case_entries(case),
        _number(measurement.mean_accepted, 1, 2),
        _time(measurement.timing),
        _number(measurement.again_us, 1, 1),
        _number(measurement.warm_us, 1, 1),
        _number(roofline_us(measurement, machine), 1, 1),
        *_moved(measurement, measurement.bytes_needed, machine),
        *_moved(measurement, measurement.bytes_all_rows, machine),
        _number(workspace, 1e3, 0),
        _number(workspace, case.logits_bytes / 100, 2),
        _number(measurement.extra_bytes, 1e6, 2),
        _number(measurement.num_launches),
        told,
    )


def _case_entries(case: Case) -> tuple[Entry, ...]:
    drafter = case.acceptance.value if case.width else NONE
    details = [] if case.draft_sampling.value != "greedy" or not case.width else ["one-hot"]
    details += [] if case.rows.value == "wide" else [f"{case.rows.value} rows"]
    details += [] if case.keeps_statistics else ["no statistics"]
    details += [f"rows {count(case.row_gap)} apart"] if case.row_gap else []
    return (
        case.method_name,
        count(case.num_requests),
        count(case.width) if case.width else NONE,
        count(case.vocab_size),
        case.dtype.value,
        Number(case.temperature, style=PLAIN),
        TRUNCATION_NAMES[case.truncation],
        ", ".join([drafter, *details]),
    )


def _time(timing: Timing | None) -> Entry:
    return NONE if timing is None else Number(timing.median_us, timing.lower_us, timing.upper_us, decimals=1)


def _moved(measurement: Measurement, num_bytes: int | None, machine: Machine) -> tuple[Entry, Entry, Entry]:
    """Bytes, how fast they moved in the median time, and that as a share of the ceiling."""
    timing, ceiling = measurement.timing, machine.read_bandwidth
    moved = _number(num_bytes, 1e6, 1)
    if num_bytes is None or timing is None or ceiling is None:
        return moved, NONE, NONE
    speed = num_bytes / (1e-6 * timing.median_us)
    return moved, _number(speed, 1e12, 2), _number(speed, ceiling / 100)


def _number(value: float | None, unit: float = 1, decimals: int = 0) -> Entry:
    return NONE if value is None else Number(value / unit, decimals=decimals)


def _peers(results: KernelResults) -> tuple[tuple[Entry, ...], ...]:
    """The peers' lines, each case's core above them."""
    core = {each.case: each for each in results.of_core}
    others = [each for each in results.measurements if each.implementation not in CORE_NAMES and each.timing]
    rows: list[tuple[Entry, ...]] = []
    for case in dict.fromkeys(each.case for each in others):
        for each in [core[case], *(other for other in others if other.case == case)]:
            own, timing = core[case].timing, each.timing
            assert own is not None and timing is not None
            ratio = Number(timing.median_us / own.median_us, decimals=1)
            counts = _number(each.extra_bytes, 1e6, 2), _number(each.num_launches)
            accepted = _number(each.mean_accepted, 1, 2)
            rows.append((case.name, each.implementation, accepted, _time(timing), ratio, *counts, each.reason))
    return tuple(rows)


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
    values = plain_values(vars(case) | vars(each)) | {
        "method": case.method_name,
        "case": case.name,
        "num_speculative_tokens": case.width,
        "is_measurement": machine.is_measurement,
        "floor_us": roofline_us(each, machine),
        "read_bandwidth_bytes_per_s": machine.read_bandwidth,
        "logits_bytes": case.logits_bytes,
        "num_compared_decisions": agreement and agreement.num_decisions,
        "num_disagreements": agreement and agreement.num_disagreements,
    }
    if timing is not None:
        values |= vars(timing) | {"lower_quartile_us": timing.lower_us, "upper_quartile_us": timing.upper_us}
    if not case.width:
        values |= {"acceptance": None, "draft_sampling": None}
    return {name: values.get(name) for name in KERNEL_COLUMNS}
