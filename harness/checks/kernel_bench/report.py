"""Tables of the kernel benchmark, made from its results alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from harness.analysis.columns import Column
from harness.checks.kernel_bench.case import TRUNCATION_NAMES, Case
from harness.checks.kernel_bench.records import CORE_NAMES, AgreementCount, KernelResults, Measurement, Status, Variant
from harness.checks.timing.measured import Machine, Timing
from harness.config.identity import plain_values
from harness.report.document import Document, Section, write_report
from harness.report.files import csv_text
from harness.report.number_format import PLAIN, Number, count
from harness.report.table import NONE, ColumnOf, Table, table_of

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


def write(results: KernelResults, folder: Path) -> list[Path]:
    """Write table as .md, .html, .tex and .csv; returns their paths."""
    return write_report(document(results), folder, Path(MARKDOWN).stem, {CSV: to_csv(results)})


def summary(results: KernelResults) -> str:
    """How many measurements there are, for the console."""
    num_of = {status: sum(each.status is status for each in results.measurements) for status in Status}
    lines = [] if results.machine.is_measurement else [NO_MEASUREMENT]
    lines.append(", ".join(f"{number} {status.value}" for status, number in num_of.items() if number))
    return "\n".join(lines)


def document(results: KernelResults) -> Document:
    """The whole report."""
    left_out = [each for each in results.measurements if each.status is not Status.measured]
    tables = [
        table_of("The core", results.of_core, core_columns(results.machine)),
        table_of("Beside other implementations", _beside_peers(results), PEER_COLUMNS),
        *(_question(results, name) for name in dict.fromkeys(each.question for each in results.variants)),
        table_of("Not measured", left_out, LEFT_OUT_COLUMNS),
    ]
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
    variants = [each for each in results.variants if each.question == question]
    return table_of(f"{question[0].upper()}{question[1:]}?", variants, VARIANT_COLUMNS)


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


def core_columns(machine: Machine) -> tuple[ColumnOf[Measurement], ...]:
    """The columns of the core, for what was measured on a machine."""

    def moved(num_bytes: Callable[[Measurement], int | None], name: str) -> tuple[ColumnOf[Measurement], ...]:
        """Bytes, how fast they moved in the median time, and that as a share of the ceiling."""

        def speed(each: Measurement, unit: float, decimals: int) -> Number | None:
            found, timing = num_bytes(each), each.timing
            if found is None or timing is None or machine.read_bandwidth is None:
                return None
            return Number(found / (1e-6 * timing.median_us) / unit, decimals=decimals)

        return (
            (name, lambda each: _number(num_bytes(each), 1e6, 1)),
            ("TB/s", lambda each: speed(each, 1e12, 2)),
            ("of ceiling (%)", lambda each: speed(each, (machine.read_bandwidth or 1) / 100, 0)),
        )

    return (
        ("method", lambda each: each.case.method_name),
        ("R", lambda each: count(each.case.num_requests)),
        ("K", lambda each: count(each.case.width) if each.case.width else None),
        ("V", lambda each: count(each.case.vocab_size)),
        ("dtype", lambda each: each.case.dtype.value),
        ("T", lambda each: Number(each.case.temperature, style=PLAIN)),
        ("truncation", lambda each: TRUNCATION_NAMES[each.case.truncation]),
        ("drafter", lambda each: _drafter(each.case)),
        ("accepted", lambda each: _number(each.mean_accepted, 1, 2)),
        ("time (us)", lambda each: _time(each.timing)),
        ("again (us)", lambda each: _number(each.again_us, 1, 1)),
        ("warm (us)", lambda each: _number(each.warm_us, 1, 1)),
        ("roofline (us)", lambda each: _number(roofline_us(each, machine), 1, 1)),
        *moved(lambda each: each.bytes_needed, "needed (MB)"),
        *moved(lambda each: each.bytes_all_rows, "all rows, equivalent (MB)"),
        ("workspace (kB)", lambda each: _number(each.workspace_bytes, 1e3)),
        ("of logits (%)", lambda each: _number(each.workspace_bytes, each.case.logits_bytes / 100, 2)),
        ("extra (MB)", lambda each: _number(each.extra_bytes, 1e6, 2)),
        ("launches", lambda each: _number(each.num_launches)),
        ("agreement", lambda each: each.agreement and _agreement(each.agreement)),
    )


def _agreement(found: AgreementCount) -> str:
    return f"{found.num_disagreements} of {found.num_decisions}"


def _drafter(case: Case) -> str:
    """How near the drafter is, and what is special about the rows."""
    details = [] if case.draft_sampling.value != "greedy" or not case.width else ["one-hot"]
    details += [] if case.rows.value == "wide" else [f"{case.rows.value} rows"]
    details += [] if case.keeps_statistics else ["no statistics"]
    details += [f"rows {count(case.row_gap)} apart"] if case.row_gap else []
    details += [f"penalties of {count(case.edited_tokens)} tokens"] if case.edited_tokens else []
    return ", ".join([case.acceptance.value if case.width else NONE, *details])


def _time(timing: Timing | None) -> Number | None:
    return None if timing is None else Number(timing.median_us, timing.lower_us, timing.upper_us, decimals=1)


def _number(value: float | None, unit: float = 1, decimals: int = 0) -> Number | None:
    return None if value is None else Number(value / unit, decimals=decimals)


VARIANT_COLUMNS: tuple[ColumnOf[Variant], ...] = (
    ("R", lambda each: count(each.num_requests)),
    ("variant", lambda each: each.name),
    ("time (us)", lambda each: _time(each.timing)),
    ("extra (MB)", lambda each: _number(each.extra_bytes, 1e6, 2)),
    ("launches", lambda each: _number(each.num_launches)),
)
PEER_COLUMNS: tuple[ColumnOf[tuple[Measurement, float]], ...] = (
    ("case", lambda row: row[0].case.name),
    ("implementation", lambda row: row[0].implementation),
    ("accepted", lambda row: _number(row[0].mean_accepted, 1, 2)),
    ("time (us)", lambda row: _time(row[0].timing)),
    ("times the core's", lambda row: Number(row[1], decimals=1)),
    ("extra (MB)", lambda row: _number(row[0].extra_bytes, 1e6, 2)),
    ("launches", lambda row: _number(row[0].num_launches)),
    ("remark", lambda row: row[0].reason),
)
LEFT_OUT_COLUMNS: tuple[ColumnOf[Measurement], ...] = (
    ("case", lambda each: each.case.name),
    ("implementation", lambda each: each.implementation),
    ("what", lambda each: each.status.value),
    ("why", lambda each: each.reason),
)


def _beside_peers(results: KernelResults) -> Iterator[tuple[Measurement, float]]:
    """What peers were timed on, the core's above theirs, each with how many times the core's time it takes."""
    core = {each.case: each for each in results.of_core}
    others = [each for each in results.measurements if each.implementation not in CORE_NAMES and each.timing]
    for case in dict.fromkeys(each.case for each in others):
        for each in [core[case], *(other for other in others if other.case == case)]:
            own, timing = core[case].timing, each.timing
            assert own is not None and timing is not None
            yield each, timing.median_us / own.median_us


def to_csv(results: KernelResults) -> str:
    """One row per measurement with all digits; empty where there is no value."""
    rows = ([_flat(each, results.machine).get(name) for name in KERNEL_COLUMNS] for each in results.measurements)
    return csv_text(list(KERNEL_COLUMNS), rows)


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
    return values
