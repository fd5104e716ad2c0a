"""Run the cells of a plan: one loaded target for all of them, the arms interleaved, every finished cell written.

Cells that are to be compared (same target, decoding, workload and backend: the baseline, every drafter, depth and
method) form a group and run the same conversations. The conversations are split into blocks; the cells take turns block
by block, forwards in one block and backwards in the next, so that drift of the machine meets all arms alike. A cell
is written when its last block is done; what was finished before an interruption is kept.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from harness.backends.backend import Backend, BackendRun, OnRequest, backend_class
from harness.compose.run_plan import RunPlan
from harness.records.acceptance_terms import collect_terms, write_terms
from harness.records.files import identity, write_atomically, write_cell
from harness.records.provenance import provenance
from harness.records.schema import SCHEMA_VERSION, Block, CellRecord
from harness.settings.cell import CellConfig
from harness.settings.guarantee import RANDOM_WEIGHTS, guarantee, labels
from harness.settings.identity import determinants, key_without, plain_values, with_rates
from harness.settings.models import Weights
from harness.settings.sections import CacheDtype
from harness.settings.usage import normal_form
from harness.sweep.progress import Progress
from harness.workload.conversations import Conversation, conversations, fingerprint, load_prompts


@dataclass
class _Arm:
    """One cell of a group while it runs."""

    cell: CellConfig
    backend: Backend
    runs: list[BackendRun] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)

    @property
    def wall_s(self) -> float:
        return sum(run.wall_s for run in self.runs)

    def play(self, conversations: Sequence[Conversation], advance: OnRequest, session: str) -> None:
        """Run the next block."""
        start_unix_s = time.time()
        run = self.backend.generate(conversations, advance, self.wall_s)
        self.blocks.append(
            Block(
                index=len(self.blocks),
                session=session,
                provenance=0,
                start_unix_s=start_unix_s,
                # the system's clock may be set back meanwhile
                end_unix_s=max(start_unix_s, time.time()),
                num_requests=len(run.requests),
                num_output_tokens=sum(item.num_output_tokens for item in run.requests),
                wall_s=run.wall_s,
                counts=run.counts,
                reported=run.reported,
            )
        )
        self.runs.append(run)


def run_cells(plan: RunPlan, folder: Path, progress: Progress, finished: list[str]) -> None:
    """Run every cell of a plan and write its records and the manifest to `folder`.

    Args:
        plan: the cells.
        folder: gets cells/ and run.json; an older run.json stays until this run has finished something.
        progress: told of every finished request.
        finished: the id of each finished cell is appended, so that the caller knows them after an interruption too.

    Raises:
        ValueError: two cells are one on this machine, or a model, a data set or a prompt does not fit; what was
            finished before is kept.
    """
    refuse_repeated(plan.cells)
    groups = comparable_groups(plan.cells)
    workloads = [_play(group[0]) for group in groups]
    run = _Run(plan, folder, progress, finished)
    progress.start(
        sum(
            len(group) * sum(len(item.prompt.turns) for item in played)
            for group, played in zip(groups, workloads, strict=True)
        )
    )
    num_before, last = 0, None
    for group, played in zip(groups, workloads, strict=True):
        target = group[0].target
        if target != last:
            what = "drawing random weights of" if target.weights is Weights.random else "loading"
            progress.note(
                f"{what} {target.name}; on a GPU the first turn of a cell also compiles and captures its steps"
            )
        last = target
        run.group(group, played, num_before)
        num_before += len(group)
    progress.finish()


@dataclass
class _Run:
    """A run under way."""

    plan: RunPlan
    folder: Path
    progress: Progress
    finished: list[str]
    places: dict[str, int] = field(default_factory=dict)
    """Place in the plan of each finished cell, by its id."""
    shared: dict[str, Any] = field(default_factory=dict)
    """What the cells of one kind of backend share, by kind."""
    session: str = field(default_factory=lambda: secrets.token_hex(4))
    """Names this process in the blocks that it runs."""
    started: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    def group(self, cells: Sequence[CellConfig], played: Sequence[Conversation], num_before: int) -> None:
        """Run the cells of one group, interleaved, and write each as soon as its last block is done."""
        kind = cells[0].backend.kind
        backend = backend_class(kind)
        if kind not in self.shared:
            self.shared[kind] = backend.Shared()
        arms = [_Arm(cell, backend(cell, self.shared[kind])) for cell in cells]
        backend.prepare_together([arm.backend for arm in arms], played)
        for turn in interleave(len(arms), played, cells[0].measurement.num_blocks):
            arm = arms[turn.arm]
            self.progress.cell(label(arm.cell), num_before + turn.arm, len(self.plan.cells))
            if turn.is_first:
                arm.backend.generate(turn.conversations[: arm.cell.measurement.num_warmup_requests])
            arm.play(turn.conversations, self._advance, self.session)
            if turn.is_last:
                record = _record(arm, played, self.plan.warnings)
                if arm.cell.measurement.round_terms and not arm.cell.is_baseline:
                    # first, so that a record that promises terms has them
                    terms = collect_terms(record.cell_id, (item for run in arm.runs for item in run.terms))
                    write_terms(terms, self.folder / "cells")
                write_cell(record, self.folder / "cells")
                self.finished.append(record.cell_id)
                self.places[record.cell_id] = num_before + turn.arm
                self._write_manifest()

    def _advance(self, num_tokens: int) -> None:
        self.progress.advance(1, num_tokens)

    def _write_manifest(self) -> None:
        content = {
            "schema_version": SCHEMA_VERSION,
            "name": self.plan.name,
            "title": self.plan.title,
            "shows": self.plan.shows,
            "does_not_show": self.plan.does_not_show,
            "reference": self.plan.reference,
            "command": self.plan.command,
            "started": self.started,
            # arms finish in the order of their last block, which says nothing to a reader
            "cells": sorted(self.finished, key=lambda cell_id: self.places[cell_id]),
            "num_cells": len(self.plan.cells),
            "skipped": [{"cell": dict(values), "reason": reason} for values, reason in self.plan.skipped],
        }
        write_atomically(self.folder / "run.json", json.dumps(content, indent=1).encode())


def comparable_groups(cells: Sequence[CellConfig]) -> list[list[CellConfig]]:
    """The cells of each target, decoding, workload and backend, in the order of the plan."""
    groups: dict[str, list[CellConfig]] = {}
    for cell in cells:
        key = key_without(cell, "drafter", "drafting", "verification", "constraint", "measurement")
        groups.setdefault(key, []).append(cell)
    return list(groups.values())


class Turn(NamedTuple):
    """One cell's turn at one block of conversations."""

    arm: int
    conversations: Sequence[Conversation]
    is_first: bool
    is_last: bool


def interleave(num_arms: int, played: Sequence[Conversation], num_blocks: int) -> Iterator[Turn]:
    """The arms' turns, block by block: forwards in even blocks, backwards in odd ones."""
    num_blocks = min(num_blocks, len(played))
    for block in range(num_blocks):
        part = played[len(played) * block // num_blocks : len(played) * (block + 1) // num_blocks]
        order = range(num_arms) if block % 2 == 0 else range(num_arms - 1, -1, -1)
        for arm in order:
            yield Turn(arm, part, block == 0, block == num_blocks - 1)


def _play(cell: CellConfig) -> list[Conversation]:
    return conversations(load_prompts(cell.workload, cell.seed), cell.workload, cell.seed)


def _record(arm: _Arm, played: Sequence[Conversation], warnings: Sequence[str]) -> CellRecord:
    cell, facts = arm.cell, arm.backend.facts()
    # what was found determines the result, not the word auto
    resolved = replace(cell, backend=facts.backend)
    config = plain_values(asdict(resolved)) | {
        "verification": with_rates(cell.verification),
        "draft_sampling": cell.draft_sampling.value,
        "guarantee": guarantee(cell).value,
        "device": facts.backend.device,
        "dtype": facts.backend.dtype,
    }
    prompts = fingerprint(item.prompt for item in played if item.sample == 0)
    return CellRecord(
        cell_id=identity(determinants(resolved, prompts, facts.models)),
        config=config,
        provenance=provenance(
            sampling_core=facts.sampling_core,
            draft_core=facts.draft_core,
            imported={path: path.source_digest() for path in cell.imported.values()},
        ),
        requests=tuple(item for run in arm.runs for item in run.requests),
        wall_s=arm.wall_s,
        num_skipped_turns=sum(run.num_skipped_turns for run in arm.runs),
        knowledge=facts.knowledge,
        blocks=tuple(arm.blocks),
        failures=tuple(item for run in arm.runs for item in run.failures),
        # a run made again brings those of its records
        fallbacks=tuple(dict.fromkeys((*warnings, *facts.fallbacks))),
        labels=labels(cell),
        **facts.sizes,
    )


def label(cell: CellConfig) -> str:
    """A cell in a few words, for the progress display."""
    weights = "".join(f" [{item}]" for item in labels(cell) if RANDOM_WEIGHTS in item)
    if cell.is_baseline:
        return f"baseline T={cell.decoding.temperature:g}{weights}"
    num_tokens, method = cell.drafting.num_speculative_tokens, cell.verification.method.value
    cache = "" if cell.drafting.cache_dtype is CacheDtype.auto else f" {cell.drafting.cache_dtype.value}"
    cache += " unrounded" if cell.draws_unrounded else ""
    return f"{cell.drafter.kind.value} K={num_tokens} T={cell.decoding.temperature:g} {method}{cache}{weights}"


def refuse_repeated(cells: Sequence[CellConfig]) -> None:
    """Raise ValueError where two cells of a plan are one here: the second record would take the place of the first."""
    first: dict[str, CellConfig] = {}
    for cell in cells:
        found = backend_class(cell.backend.kind).resolved(cell)
        other = first.setdefault(key_without(normal_form(found)), cell)
        if other is not cell:
            raise ValueError(
                f"two cells differ in {' and '.join(_differences(other, cell))} only, which makes no difference "
                f"on {found.backend.device} with the rest of the settings, so that they are one; give one value, or "
                "what makes it count (rejection-lab run --help)"
            )


def _differences(one: CellConfig, other: CellConfig) -> list[str]:
    """Every setting in which two cells differ, with both values."""
    first, second = plain_values(asdict(one)), plain_values(asdict(other))
    return [
        f"{section}.{name} ({json.dumps(value)}, {json.dumps(second[section][name])})"
        for section, values in first.items()
        if isinstance(values, dict)
        for name, value in values.items()
        if value != second[section][name]
    ]
