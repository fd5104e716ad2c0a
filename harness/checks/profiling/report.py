"""The report of round profiles: a table with definitions and provenance, and JSON with everything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias

from harness.checks.profiling.cells import CellProfile
from harness.checks.profiling.profile import Phases, RoundProfile
from harness.checks.profiling.roofline import (
    BYTES_DEFINITION,
    OPERATIONS_DEFINITION,
    PARTS,
    ROOFLINE_DEFINITION,
    RoundRoofline,
    round_roofline,
)
from harness.checks.timing.measured import Timing
from harness.config.guarantee import labels
from harness.records.provenance import provenance
from harness.records.runs import PROFILE
from harness.report.document import Document, Section, write_report
from harness.report.files import json_text
from harness.report.number_format import Number, count
from harness.report.table import Entry, Table, table_of
from harness.runner.cell_label import label
from harness.runner.plan.run_plan import RunPlan, cell_rows

JSON = f"{Path(PROFILE).stem}.json"
SCHEMA_VERSION = 2
NO_MEASUREMENT = "no measurement"
ON_A_CPU = (
    "Run on a CPU, to show that everything runs: the times are no measurement, there is no bandwidth to say how short "
    "they could be, and no time of the host beside the device's, because they are one."
)
PHASES = tuple(item.name for item in fields(Phases))
DEFINITIONS = (
    "All slots decode, each with so many tokens, the last of which the target has not read. Times are medians with "
    "their quartiles in brackets. On a GPU every piece is captured in a CUDA graph and replayed from a cold L2 "
    "(emptied by reading before every repeat, outside of what is timed).",
    "Draft: applying the host's input, and K draft tokens. Target: one forward over the K + 1 tokens of each slot, "
    "with its logits. Verify: the sampling core. Extend: the drafter reads what the target has read. Commit: tokens, "
    "lengths and counts on the device. Each is timed alone, on what those before it left.",
    "Step: the five as one piece. Commit and step move the state, so copies that put it back are part of both: a few "
    "microseconds (put_back in the JSON).",
    "Round: wall time between two results of the running engine while all slots decode, at about that length. Host: "
    "what a round takes beyond its step, also in percent of the round: launching, reading results and planning, as far "
    "as the device does not hide it. 0 where a round takes no longer than the step alone, which starts from a cold L2. "
    "On a CPU the step itself is the host's work, so that there is none.",
    ROOFLINE_DEFINITION,
    BYTES_DEFINITION,
    OPERATIONS_DEFINITION,
    "TB/s: read bandwidth that the roofline assumes, the best of a few plain ways of reading. TFLOP/s: matrix rate "
    "that it assumes, the best of a few large products of random matrices of the target's dtype. Both measured in the "
    "same run; TB and TFLOP are powers of ten.",
    "–: the baseline verifies nothing; roofline, TB/s and TFLOP/s need the rates of a GPU.",
    "Accepted: draft tokens that a slot accepts, on average, in the round that was timed. Graphs: whether the running "
    "engine replays its steps as CUDA graphs.",
)


@dataclass(frozen=True)
class RoundResults:
    """What a run has profiled so far."""

    plan: RunPlan
    length: int
    num_repeats: int
    cells: tuple[CellProfile, ...]


def write_results(results: RoundResults, folder: Path) -> list[Path]:
    """Write round_profile as .md, .html, .tex and .json; returns their paths."""
    source = {
        "command": results.plan.command,
        "length": results.length,
        "repeats": results.num_repeats,
        "provenance": provenance(sampling_core=results.cells[0].found.sampling_core),
    }
    content = {"schema_version": SCHEMA_VERSION, **source, "cells": [to_json(done) for done in results.cells]}
    return write_report(document(results, source), folder, Path(PROFILE).stem, {JSON: json_text(content)})


def to_json(done: CellProfile) -> dict[str, Any]:
    """One cell as plain JSON values."""
    profile, machine = done.found.profile, done.machine
    roofline = _roofline(done)
    return {
        "number": done.number,
        "config": done.cell,
        "labels": _labels(done),
        "notes": list(done.found.notes),
        "dtype": done.found.dtype,
        "graphs": done.found.graphs,
        "sampling_core": done.found.sampling_core,
        "machine": asdict(machine)
        | {
            "read_bandwidth_bytes_per_s": machine.read_bandwidth,
            "matrix_ways": done.found.matrix_ways,
            "matrix_rate_operations_per_s": done.found.matrix_rate,
        },
        "profile": profile.to_json(),
        "sum_of_phases_us": profile.phases.sum_us,
        "host_us": profile.host_us if machine.is_measurement else None,
        "host_share": profile.host_share if machine.is_measurement else None,
        "floors": None if roofline is None else _roofline_json(roofline),
    }


def _roofline_json(roofline: RoundRoofline) -> dict[str, Any]:
    parts = {
        name: part._asdict() | {"us": part.us, "bound_by": part.bound_by}
        for name, part in zip(PARTS, roofline, strict=True)
    }
    return parts | {
        "round": {"bytes_us": roofline.bytes_us, "operations_us": roofline.operations_us, "us": roofline.us}
    }


def document(results: RoundResults, source: dict[str, Any]) -> Document:
    """The whole report; `source` says where it comes from."""
    header, *rows = cell_rows(results.plan.cells)
    table = table_of("Phases of a round", results.cells, COLUMNS)
    sections = [Section(table.title, tables=(table,))]
    sections.append(Section("The cells", tables=(Table("The cells", ("#", *header[1:]), tuple(rows)),)))
    notes = [f"cell {done.number}: {note}" for done in results.cells for note in done.found.notes]
    sections += [Section("Notes", items=tuple(notes))] if notes else []
    return Document(
        f"{results.plan.name}: a round, phase by phase",
        paragraphs=tuple(dict.fromkeys(map(_about, results.cells))),
        sections=tuple(sections),
        definitions=DEFINITIONS,
        provenance=[source],
    )


def line(done: CellProfile, num_cells: int) -> str:
    """One line about a cell, for the console."""
    profile = done.found.profile
    parts = " + ".join(f"{name} {_ms(getattr(profile.phases, name).median_us)}" for name in PHASES)
    roofline = _roofline(done)
    beyond = f" ({NO_MEASUREMENT})"
    if roofline is not None:
        beyond = f", host {_ms(profile.host_us)} ms, roofline {_ms(roofline.us)} ms"
    return (
        f"[{done.number}/{num_cells}] {label(done.cell)}: step {_ms(profile.step.median_us)} ms, alone {parts}{beyond}"
    )


def _labels(done: CellProfile) -> list[str]:
    return [*([] if done.machine.is_measurement else [NO_MEASUREMENT]), *labels(done.cell)]


def _roofline(done: CellProfile) -> RoundRoofline | None:
    """None on a CPU."""
    bandwidth = done.machine.read_bandwidth
    return None if bandwidth is None else round_roofline(done.found.profile.cost, bandwidth, done.found.matrix_rate)


def _about(done: CellProfile) -> str:
    """The device of a cell and its rates, in words."""
    machine = done.machine
    if machine.read_bandwidth is None:
        return ON_A_CPU
    return (
        f"{machine.device}, read bandwidth {machine.read_bandwidth / 1e12:.2f} TB/s, matrix rate "
        f"{done.found.matrix_rate / 1e12:.0f} TFLOP/s in {done.found.dtype}, both measured in this run; an empty graph "
        f"takes {machine.empty_graph_us:.1f} us, one small kernel {machine.one_kernel_us:.1f} us."
    )


def _time(timing: Timing) -> Number:
    return Number(timing.median_us / 1e3, timing.lower_us / 1e3, timing.upper_us / 1e3, decimals=3)


def _in_ms(time_us: float) -> Number:
    return Number(time_us / 1e3, decimals=3)


def _ms(time_us: float) -> str:
    return str(_in_ms(time_us))


Entries: TypeAlias = Callable[[CellProfile], Entry | None]


def _phase(name: str) -> Entries:
    return lambda done: _time(getattr(done.found.profile.phases, name))


def _if_measured(entry: Callable[[RoundProfile], Entry]) -> Entries:
    """Nothing on a CPU."""
    return lambda done: entry(done.found.profile) if done.machine.is_measurement else None


def _of_roofline(entry: Callable[[RoundRoofline, CellProfile], Entry | None]) -> Entries:
    """Nothing without a roofline."""
    return lambda done: None if (roofline := _roofline(done)) is None else entry(roofline, done)


def _of_part(place: int) -> Entries:
    return _of_roofline(lambda roofline, _: _in_ms(roofline[place].us))


def _bound_by(roofline: RoundRoofline) -> str:
    bounds = zip(PARTS, roofline, strict=True)
    return "; ".join(f"{name}: {part.bound_by}" for name, part in bounds if part.bound_by)


def _step_by(lower_us: float, done: CellProfile) -> Number:
    return Number(done.found.profile.step.median_us / lower_us, decimals=2)


def _in_tera(rate: float | None, decimals: int) -> Number | None:
    return None if rate is None else Number(rate / 1e12, decimals=decimals)


COLUMNS: tuple[tuple[str, Entries], ...] = (
    ("#", lambda done: count(done.number)),
    ("target", lambda done: done.cell.target.name),
    ("drafter", lambda done: done.cell.drafter.kind.value),
    ("verification", lambda done: None if done.cell.is_baseline else done.cell.verification.method.value),
    ("slots", lambda done: count(done.found.profile.num_slots)),
    ("K", lambda done: count(done.found.profile.num_speculative_tokens)),
    ("tokens per slot", lambda done: count(done.found.profile.length)),
    *((f"{name} (ms)", _phase(name)) for name in PHASES),
    ("sum of phases (ms)", lambda done: _in_ms(done.found.profile.phases.sum_us)),
    ("step (ms)", lambda done: _time(done.found.profile.step)),
    ("round (ms)", lambda done: _time(done.found.profile.round)),
    ("host (ms)", _if_measured(lambda profile: _in_ms(profile.host_us))),
    ("host (%)", _if_measured(lambda profile: Number(100 * profile.host_share, decimals=1))),
    *((f"roofline of {name} (ms)", _of_part(place)) for place, name in enumerate(PARTS)),
    ("bound by", _of_roofline(lambda roofline, _: _bound_by(roofline))),
    ("roofline (ms)", _of_roofline(lambda roofline, _: _in_ms(roofline.us))),
    ("step / roofline", _of_roofline(lambda roofline, done: _step_by(roofline.us, done))),
    ("bytes alone (ms)", _of_roofline(lambda roofline, _: _in_ms(roofline.bytes_us))),
    ("step / bytes", _of_roofline(lambda roofline, done: _step_by(roofline.bytes_us, done))),
    ("operations alone (ms)", _of_roofline(lambda roofline, _: _in_ms(roofline.operations_us))),
    ("TB/s", lambda done: _in_tera(done.machine.read_bandwidth, 2)),
    ("TFLOP/s", _of_roofline(lambda _, done: _in_tera(done.found.matrix_rate, 0))),
    ("accepted", lambda done: Number(done.found.profile.mean_accepted, decimals=2)),
    ("graphs", lambda done: "yes" if done.found.graphs else "no"),
    ("labels", lambda done: "; ".join(_labels(done))),
)
HEADER = tuple(name for name, _ in COLUMNS)
