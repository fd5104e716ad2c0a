"""The report of round profiles: a table with definitions and provenance, and JSON with everything."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from harness.compose.run_plan import RunPlan, cell_table
from harness.profiling.cells import CellProfile
from harness.profiling.profile import Phases
from harness.profiling.roofline import (
    BYTES_DEFINITION,
    OPERATIONS_DEFINITION,
    PARTS,
    ROOFLINE_DEFINITION,
    RoundRoofline,
    round_roofline,
)
from harness.records.files import write_atomically
from harness.records.provenance import provenance
from harness.settings.guarantee import labels
from harness.settings.identity import plain_values
from harness.sweep.run_cells import label
from harness.timing.measured import Timing

JSON, MARKDOWN = "round_profile.json", "round_profile.md"
SCHEMA_VERSION = 2
NONE = "–"
NO_MEASUREMENT = "no measurement"
ON_A_CPU = (
    "Run on a CPU, to show that everything runs: the times are no measurement, there is no bandwidth to say how short "
    "they could be, and no time of the host beside the device's, because they are one."
)
PHASES = tuple(item.name for item in fields(Phases))
HEADER = (
    *("#", "target", "drafter", "verification", "slots", "K", "tokens per slot"),
    *(f"{name} (ms)" for name in PHASES),
    *("sum of phases (ms)", "step (ms)", "round (ms)", "host (ms)", "host (%)"),
    *(f"floor of {name} (ms)" for name in PARTS),
    *("bound by", "floor (ms)", "step / floor", "bytes alone (ms)", "step / bytes", "operations alone (ms)"),
    *("TB/s", "TFLOP/s"),
    *("accepted", "graphs", "labels"),
)
DEFINITIONS = (
    "All slots decode, each with so many tokens, the last of which the target has not read. Times are medians with "
    "their quartiles. On a GPU every piece is captured in a CUDA graph and replayed from a cold L2 (emptied by reading "
    "before every repeat, outside of what is timed).",
    "Draft: taking in what the host says, and K draft tokens. Target: one forward over the K + 1 tokens of each slot, "
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
    "TB/s: read bandwidth that the floors assume, the best of a few plain ways of reading. TFLOP/s: matrix rate that "
    "they assume, the best of a few large products of random matrices of the target's dtype. Both measured in the same "
    "run; TB and TFLOP are powers of ten.",
    "–: the baseline verifies nothing; floors, TB/s and TFLOP/s need the rates of a GPU.",
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


def write_results(results: RoundResults, folder: Path) -> tuple[Path, Path]:
    """Write round_profile.json and round_profile.md; returns their paths."""
    source = {
        "command": results.plan.command,
        "length": results.length,
        "repeats": results.num_repeats,
        "provenance": provenance(sampling_core=results.cells[0].found.sampling_core),
    }
    content = {"schema_version": SCHEMA_VERSION, **source, "cells": [to_json(done) for done in results.cells]}
    paths = folder / JSON, folder / MARKDOWN
    write_atomically(paths[0], (json.dumps(content, indent=1) + "\n").encode())
    write_atomically(paths[1], to_markdown(results, source).encode())
    return paths


def to_json(done: CellProfile) -> dict[str, Any]:
    """One cell as plain JSON values."""
    profile, machine = done.found.profile, done.machine
    floors = _floors(done)
    return {
        "number": done.number,
        "config": plain_values(asdict(done.cell)),
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
        "floors": None if floors is None else _roofline_json(floors),
    }


def _roofline_json(floors: RoundRoofline) -> dict[str, Any]:
    parts = {
        name: part._asdict() | {"us": part.us, "bound_by": part.bound_by}
        for name, part in zip(PARTS, floors, strict=True)
    }
    return parts | {"round": {"bytes_us": floors.bytes_us, "operations_us": floors.operations_us, "us": floors.us}}


def to_markdown(results: RoundResults, source: dict[str, Any]) -> str:
    """The whole page; `source` says where it comes from."""
    parts = [f"# {results.plan.name}: a round, phase by phase", ""]
    parts += [line for about in dict.fromkeys(map(_about, results.cells)) for line in (about, "")]
    parts += [*_table(HEADER, [_row(done) for done in results.cells]), ""]
    parts += ["## The cells", "", "```", cell_table(results.plan.cells), "```", ""]
    notes = [f"cell {done.number}: {note}" for done in results.cells for note in done.found.notes]
    if notes:
        parts += ["## Notes", "", *(f"- {note}" for note in notes), ""]
    parts += ["## How to read it", "", *(f"- {text}" for text in DEFINITIONS), ""]
    parts += ["## Where it comes from", "", "```json", json.dumps(source, indent=1), "```", ""]
    return "\n".join(parts)


def line(done: CellProfile, num_cells: int) -> str:
    """One line about a cell, for the console."""
    profile = done.found.profile
    parts = " + ".join(f"{name} {_ms(getattr(profile.phases, name).median_us)}" for name in PHASES)
    floors = _floors(done)
    beyond = f" ({NO_MEASUREMENT})"
    if floors is not None:
        beyond = f", host {_ms(profile.host_us)} ms, floor {_ms(floors.us)} ms"
    return (
        f"[{done.number}/{num_cells}] {label(done.cell)}: step {_ms(profile.step.median_us)} ms, alone {parts}{beyond}"
    )


def _row(done: CellProfile) -> tuple[str, ...]:
    cell, profile = done.cell, done.found.profile
    host = (NONE, NONE)
    if done.machine.is_measurement:
        host = _ms(profile.host_us), f"{100 * profile.host_share:.1f}"
    return (
        *(str(done.number), cell.target.name, cell.drafter.kind.value),
        NONE if cell.is_baseline else cell.verification.method.value,
        *(str(profile.num_slots), str(profile.num_speculative_tokens), str(profile.length)),
        *(_time(getattr(profile.phases, name)) for name in PHASES),
        *(_ms(profile.phases.sum_us), _time(profile.step), _time(profile.round)),
        *host,
        *_floor_cells(done),
        *(f"{profile.mean_accepted:.2f}", "yes" if done.found.graphs else "no", "; ".join(_labels(done))),
    )


def _labels(done: CellProfile) -> list[str]:
    return [*([] if done.machine.is_measurement else [NO_MEASUREMENT]), *labels(done.cell)]


def _floors(done: CellProfile) -> RoundRoofline | None:
    """None on a CPU."""
    bandwidth = done.machine.read_bandwidth
    return None if bandwidth is None else round_roofline(done.found.profile.cost, bandwidth, done.found.matrix_rate)


def _floor_cells(done: CellProfile) -> tuple[str, ...]:
    """From the floors of the parts to the rates that they assume."""
    floors, bandwidth = _floors(done), done.machine.read_bandwidth
    if floors is None or bandwidth is None:
        return (NONE,) * (len(PARTS) + 8)
    step_us = done.found.profile.step.median_us
    bounds = (f"{name}: {part.bound_by}" for name, part in zip(PARTS, floors, strict=True) if part.bound_by)
    return (
        *(_ms(part.us) for part in floors),
        *("; ".join(bounds), _ms(floors.us), f"{step_us / floors.us:.2f}"),
        *(_ms(floors.bytes_us), f"{step_us / floors.bytes_us:.2f}", _ms(floors.operations_us)),
        *(f"{bandwidth / 1e12:.2f}", f"{done.found.matrix_rate / 1e12:.0f}"),
    )


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


def _time(timing: Timing) -> str:
    return f"{_ms(timing.median_us)} ({_ms(timing.lower_us)} to {_ms(timing.upper_us)})"


def _ms(time_us: float) -> str:
    return f"{time_us / 1e3:.3f}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in [header, ["---"] * len(header), *rows]]
