"""Table of two engines on the same work: tokens per second of both and their ratio, by prompts and by blocks.

This module knows what to show; it does not know where it is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from harness.analysis.cell import CellResult
from harness.analysis.definitions import footnotes, metric
from harness.analysis.engines import LOCAL, EnginePair, block_pairs, client_share, engine_pairs, ratio_by_blocks
from harness.analysis.estimates import paired_ratio
from harness.analysis.intervals import MIN_BLOCKS
from harness.records.provenance import measured_with
from harness.records.schema import CellRecord
from harness.report.cell_names import (
    CONTEXT,
    baseline_name,
    depth_text,
    drafter_name,
    label_notes,
    summary_order,
    varying,
)
from harness.report.entries import estimate_number, metric_number, same_answers, setting, settings_of
from harness.report.number_format import Number, count, format_value
from harness.report.table import NONE, Entry, Table

THROUGHPUT, LENGTH = "output_tokens_per_s", "mean_acceptance_length"
CLOCK = (
    "Both clocks are those of the process that asks, of whole blocks: on this engine, which runs in that process, from "
    "the first admission until the device is idle; on a server from the first request sent until the last answer has "
    "ended, so that HTTP, JSON and the streaming of chunks are in its time, and its own process can do them beside "
    "the model. Tokens of prompts, counters and records are in neither: see beside the clock (s). client busy (%): of "
    "the server's time, the process that asks on a core; near 100 it is the client that is measured. same answers, at "
    "temperature 0: requests with identical output tokens."
)
RATIOS = (
    "ratio: tok/s of the first engine over those of the second, above 1 the first is faster. By prompts: paired by "
    "prompt, an interval without the machine's drift. By blocks: geometric mean over the blocks that both played in "
    "one session, in turns, with Student's t interval, which holds the machine's drift (n/a with fewer than "
    f"{MIN_BLOCKS} blocks). Engines are compared by ratios of one session, never by figures that were taken apart."
)


def engine_tables(cells: Sequence[CellResult]) -> list[Table]:
    """One table with a row for every pair of cells that differ in their engine alone; none where there is no pair.

    Args:
        cells: of any runs, baselines and failed ones among them.
    """
    pairs = sorted(engine_pairs(cells), key=lambda pair: summary_order(pair.own))
    if not pairs:
        return []
    shown = list({cell["cell_id"]: cell for pair in pairs for cell in pair}.values())
    extra = [name for name in varying([pair.own for pair in pairs], CONTEXT) if name != "engine"]
    header = [*extra, "T", "drafter", "K", "verification", "engines", "tok/s, first", "tok/s, second"]
    header += ["ratio by prompts", "ratio by blocks", "blocks"]
    header += [*(f"{metric(LENGTH).label}, {which}" for which in ("first", "second")), "same answers"]
    header += ["beside the clock (s), first", "beside the clock (s), second", "client busy (%)", "labels"]
    notes = (RATIOS, CLOCK, *_engine_notes(shown), *_failures(pairs), *footnotes([THROUGHPUT, LENGTH]))
    return [
        Table(
            "Engines side by side",
            tuple(header),
            tuple(_row(pair, extra) for pair in pairs),
            (*notes, *label_notes(shown)),
        )
    ]


def engine_lines(cells: Sequence[CellResult]) -> list[str]:
    """The same in short, a line for every pair of cells that have not failed."""
    pairs = sorted(engine_pairs(cells), key=lambda pair: summary_order(pair.own))
    return [_line(pair) for pair in pairs if not any(cell.record.has_failed for cell in pair)]


def _line(pair: EnginePair) -> str:
    own = pair.own
    what = baseline_name(own) if own.is_baseline else f"{drafter_name(own)}, {depth_text(own)}, {own['verification']}"
    speeds = " / ".join(format_value(cell.estimate(THROUGHPUT).value, metric(THROUGHPUT).style) for cell in pair)
    by_prompts, by_blocks = _ratios(pair)
    num_blocks = len(block_pairs(pair))
    return (
        f"{_engines(pair)}, {what}, T = {own['temperature']:g}: {speeds} tok/s; "
        f"ratio {by_prompts} by prompts, {by_blocks} by {num_blocks} blocks"
    )


def _engines(pair: EnginePair) -> str:
    """Both, and what tells such peers apart."""
    others = pair.peer["other_settings"]
    return f"{pair.own['engine']} / {pair.peer['engine']}" + (f" ({others})" if others else "")


def _ratios(pair: EnginePair) -> tuple[Number, Number]:
    """By prompts and by blocks."""
    ratio = paired_ratio(pair.peer.estimates, pair.own.estimates, THROUGHPUT)
    return metric_number(ratio, THROUGHPUT, style="length"), Number(*ratio_by_blocks(pair), style="length")


def _row(pair: EnginePair, extra: Sequence[str]) -> tuple[Entry, ...]:
    own, peer = pair
    settings = [*settings_of(own, extra), NONE, NONE]
    if not own.is_baseline:
        settings[-2:] = [setting(own["num_speculative_tokens"]), own["verification"]]
    speeds = [estimate_number(cell, THROUGHPUT) for cell in pair]
    lengths: list[Entry] = [NONE if cell.is_baseline else estimate_number(cell, LENGTH) for cell in pair]
    beside = [Number(cell.record.beside_s, style="seconds") for cell in pair]
    busy = Number(client_share(peer.record), style="percent")
    # with random numbers of their own two engines write other text
    answers = same_answers(own, peer) if own.is_argmax else NONE
    labels = "; ".join(f"{cell['engine']}: {cell['labels']}" for cell in pair if cell["labels"])
    num_blocks = count(len(block_pairs(pair)))
    return (*settings, _engines(pair), *speeds, *_ratios(pair), num_blocks, *lengths, answers, *beside, busy, labels)


def _engine_notes(cells: Sequence[CellResult]) -> list[str]:
    """Versions and settings of every engine, and when and in which sessions it was measured."""
    found: dict[str, None] = {}
    for cell in cells:
        what = _version(cell) if cell["engine"] == LOCAL else _served(cell)
        found[f"{cell['engine']}: {what}"] = None
    times = [block for cell in cells for block in cell.record.blocks]
    if times:
        sessions = ", ".join(dict.fromkeys(block.session for block in times))
        first, last = (
            datetime.fromtimestamp(item, UTC).strftime("%Y-%m-%d %H:%M")
            for item in (min(block.start_unix_s for block in times), max(block.end_unix_s for block in times))
        )
        num_blocks = max(len(cell.record.blocks) for cell in cells)
        found[f"measured in session {sessions}, {first} to {last} UTC, at most {num_blocks} blocks a cell"] = None
    return list(found)


def _version(cell: CellResult) -> str:
    """What this engine was measured with."""
    known = measured_with(cell.record.provenance)
    names = [name for name in known if name not in ("transformers", "tokenizers", "numpy", "pandas")]
    backend = cell.record.config["backend"]
    given = {name: backend.get(name) for name in ("device", "dtype", "max_concurrency", "fused", "graphs")}
    texts = [f"{name} {known[name]}" for name in names if known[name] not in ("None", "")]
    return ", ".join([*texts, *(f"{name} = {value}" for name, value in given.items())])


def _served(cell: CellResult) -> str:
    """What served, and how it was started."""
    server, record = cell.record.config.get("server", {}), cell.record
    version = record.provenance.get("sampling_core") or "version not known"
    how = f"at {server['url']}" if server.get("url") else f"started by `{server.get('command')}`"
    kept = {name: server.get(name) for name in ("max_running", "num_waiting")}
    return ", ".join([str(version), how, *(f"{name} = {value}" for name, value in kept.items() if value is not None)])


def _failures(pairs: Sequence[EnginePair]) -> list[str]:
    """Why a cell of a pair has no numbers, or lacks some."""
    found: dict[str, None] = {}
    for cell in (cell for pair in pairs for cell in pair):
        for reason in _reasons(cell.record):
            found[f"failed: {cell['engine']}, drafter {cell['drafter']}: {reason}"] = None
    return list(found)


def _reasons(record: CellRecord) -> list[str]:
    """One of each kind of error."""
    return list({item.error: item.reason for item in record.failures}.values())
