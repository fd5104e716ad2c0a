"""What the sums over ranks take of a round: rounds of the running engine, with them and without."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from harness.backends.local.local import LocalBackend
from harness.backends.local.model_store import ModelStore
from harness.checks.profiling.cells import check_length, for_profile
from harness.checks.profiling.profile import num_rounds_of, round_time
from harness.checks.timing.measured import Timing
from harness.config.cell import CellConfig
from harness.config.guarantee import labels
from harness.engine.request import Request
from harness.models.general.sharded_target import ShardedTarget
from harness.records.provenance import provenance
from harness.report.document import Document, Section, write_report
from harness.report.files import json_text
from harness.report.number_format import Number, count
from harness.report.table import Table, table_of
from harness.runner.plan.run_plan import RunPlan
from harness.workload.conversations import conversations, load_prompts

STEM = "bench_ranks"
TITLE = "Rounds on several ranks"
DEFINITIONS = (
    "Round: wall time between two results of the running engine while all slots decode, at about that length; the "
    "median with its quartiles.",
    "Without sums: the same after `all_reduce` was replaced by nothing on all ranks, in steps captured anew. "
    "Broadcasts of tokens and hidden states, and the gathering of logits, stay.",
    "Sums (%): 100 (round - without sums) / round, of the medians: the sums over ranks and the wait for the slower "
    "rank. Measured once, one after the other.",
)


class RankCost(NamedTuple):
    """One cell."""

    cell: CellConfig
    round: Timing
    without_sums: Timing | None
    """None on one rank."""
    device: str
    collectives: str
    """By what ranks talk; empty on one rank."""
    notes: tuple[str, ...]

    @property
    def is_measurement(self) -> bool:
        return self.device != "cpu"

    @property
    def share(self) -> float | None:
        """Of the round, that the sums take."""
        if self.without_sums is None:
            return None
        return 1 - self.without_sums.median_us / self.round.median_us


def rank_costs(cells: Sequence[CellConfig], length: int, num_repeats: int) -> Iterator[RankCost]:
    """Time the cells of a plan, one after the other; see `profile_cells`."""
    # a target is loaded once for each number of ranks
    ordered = sorted(cells, key=lambda cell: cell.local.tensor_parallel)
    asked = [for_profile(cell, length, num_repeats) for cell in ordered]
    played = [conversations(load_prompts(each.workload, each.seed), each.workload, each.seed) for each in asked]
    store = ModelStore()
    for cell, items in zip(asked, played, strict=True):
        backend = LocalBackend(cell, store)
        check_length(backend)
        backend.prepare(items)
        requests = [request for request in map(backend.requests.first, items) if request is not None]
        with_sums = _round(backend, requests, num_rounds_of(num_repeats))
        target, without, collectives = backend.target, None, ""
        if isinstance(target, ShardedTarget) and target.split is not None:
            collectives = target.split.collectives
            let_all_ranks_sum(target, False)
            try:
                without = _round(backend, requests, num_rounds_of(num_repeats))
            finally:
                let_all_ranks_sum(target, True)
        place = target.device
        device = torch.cuda.get_device_name(place) if place.type == "cuda" else place.type
        notes = backend.facts().fallbacks
        # the next one may need its memory
        del backend, target
        yield RankCost(cell, with_sums, without, device, collectives, notes)


def _round(backend: LocalBackend, requests: Sequence[Request], num_rounds: int) -> Timing:
    """Of an engine that is made for it."""
    try:
        return round_time(backend.engine_of_cell.engine(), requests, num_rounds)
    finally:
        backend.engine_of_cell.forget()


def let_all_ranks_sum(target: ShardedTarget, sums: bool) -> None:
    """Let the sums over ranks be as they are, or nothing."""
    assert target.lead is not None, "it has loaded"
    target.lead.call("run", (_let_rank_sum, sums))
    _let_rank_sum(sums)


_ALL_REDUCE = dist.all_reduce


def _let_rank_sum(sums: bool) -> None:
    dist.all_reduce = _ALL_REDUCE if sums else _nothing


def _nothing(*_: Any, **__: Any) -> None:
    """Stands for a sum."""


def _ms(timing: Timing) -> Number:
    return Number(timing.median_us / 1e3, timing.lower_us / 1e3, timing.upper_us / 1e3, decimals=3)


def table(costs: Sequence[RankCost]) -> Table:
    """A row for each cell."""
    return table_of(
        TITLE,
        costs,
        (
            ("target", lambda item: item.cell.target.name),
            ("drafter", lambda item: item.cell.drafter.kind.value),
            ("K", lambda item: count(0 if item.cell.is_baseline else item.cell.drafting.num_speculative_tokens)),
            ("slots", lambda item: count(item.cell.backend.max_concurrency)),
            ("ranks", lambda item: count(item.cell.local.tensor_parallel)),
            ("by", lambda item: item.collectives or None),
            ("round (ms)", lambda item: _ms(item.round)),
            ("without sums (ms)", lambda item: None if item.without_sums is None else _ms(item.without_sums)),
            ("sums (%)", lambda item: None if item.share is None else Number(100 * item.share, decimals=1)),
            ("device", lambda item: item.device),
            (
                "labels",
                lambda item: "; ".join([*([] if item.is_measurement else ["no measurement"]), *labels(item.cell)]),
            ),
        ),
    )


def write_costs(plan: RunPlan, length: int, costs: Sequence[RankCost]) -> Path:
    """Write bench_ranks as .json, .md, .html and .tex to the plan's folder; returns the path of the .md."""
    origin = provenance()
    notes = tuple(dict.fromkeys(note for cost in costs for note in cost.notes))
    section = Section(f"{length} tokens in each slot", tables=(table(costs),), below=notes)
    facts = (("command", f"`{plan.command}`"),)
    document = Document(TITLE, facts, sections=(section,), definitions=DEFINITIONS, provenance=[origin])
    content = {
        "command": plan.command,
        "length": length,
        "costs": [item._asdict() | {"share": item.share} for item in costs],
        "provenance": origin,
    }
    return write_report(document, plan.folder, STEM, {f"{STEM}.json": json_text(content)})[0]
