"""What a run records: cells of requests. The seam between what generates and everything that reads results.

What writes records may need a GPU; what reads them runs without torch. A record cannot be built
inconsistent. This module does not know models, torch or Hydra.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from harness.records import InconsistentRecordError
from harness.records.counts import DraftCounts, Knowledge
from harness.records.gpu_samples import GpuSamples
from harness.records.request import RequestRecord
from harness.records.strict_json import Int64, shown

SCHEMA_VERSION = 3
"""2: the provenance names the sampling core, and draft_logit_cache_bytes counts the statistics of its rows. 3: how much
is known of drafts, blocks, several provenances, failures, paths of trees; what 2 has is the same."""
READABLE_VERSIONS = (2, 3)
CLIENT_CPU = "client:cpu_s"
"""Name in `Block.reported` of the time that this process spent on a core while a server answered it."""
_FILE_NAME = re.compile(r"[\w-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Block:
    """One turn of a cell: some of its requests, run without a pause while the other cells of its group waited."""

    index: Int64
    session: str
    """Names the process that ran it; times are compared within one session."""
    provenance: Int64
    """Which of the cell's provenances holds for it."""
    start_unix_s: float
    end_unix_s: float
    """The system's clock; durations come from `wall_s`."""
    num_requests: Int64
    """Requests of the cell that it ran, in the cell's order after those of the block before."""
    num_output_tokens: Int64
    wall_s: float
    """Measured time: all that its throughput is divided by."""
    counts: DraftCounts | None = None
    """Of its drafts, where these are counted by block."""
    reported: Mapping[str, Int64 | float] = field(default_factory=dict)
    """Counts of the server itself during the block, by its own names."""
    call_s: float | None = None
    """How long the backend's whole call took, synchronised at both ends. What it exceeds `wall_s` by, the clock stood:
    tokens of prompts, measures of drafts, checkpoints, records. None where a part of the call is missing."""
    gpu: GpuSamples | None = None
    """Seen beside it; None where the process that measured did not compute on a GPU, and in older records."""

    def __post_init__(self) -> None:
        if not (0 <= self.wall_s < math.inf and self.start_unix_s <= self.end_unix_s < math.inf):
            raise InconsistentRecordError(
                f"block {self.index}: expected a finite wall_s of 0 or more and an end that is not before the start, "
                f"found wall_s = {self.wall_s}, {self.start_unix_s} to {self.end_unix_s}"
            )
        for name in ("index", "provenance", "num_requests", "num_output_tokens"):
            if getattr(self, name) < 0:
                raise InconsistentRecordError(
                    f"block {self.index}: {name}: expected 0 or more, found {getattr(self, name)}"
                )


@dataclass(frozen=True, slots=True)
class Failure:
    """Something that a cell could not do."""

    error: str
    """Name of the exception's class."""
    message: str
    traceback: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The settings of the failed work that are not in the cell's configuration."""
    request: tuple[str, Int64, Int64] | None = None
    """Key of the request; None if the failure is the cell's or a block's."""

    @property
    def reason(self) -> str:
        """Name and message of the error, in one line."""
        return f"{self.error}: {' '.join(self.message.split())}"


def _count(unit: str, definition: str, **default: Any) -> Any:
    """A field of a cell that is a column of the results; None where a backend cannot tell."""
    return field(metadata={"unit": unit, "definition": definition}, **default)


@dataclass(frozen=True, slots=True)
class CellRecord:
    """One cell of a sweep: one complete configuration and what it produced."""

    cell_id: str
    config: Mapping[str, Any]
    """The resolved configuration as plain values, with `draft_sampling`, `guarantee`, `device`, `dtype` resolved."""
    provenance: Mapping[str, Any]
    """Where it was measured; of its first block if there are several."""
    requests: tuple[RequestRecord, ...]
    wall_s: float
    """Duration of the measured phase: the sum over the cell's blocks."""
    draft_logit_cache_bytes: int | None = _count(
        "bytes",
        "draft-logit cache: slots * K * (draft vocabulary * bytes per element, and 16 of row statistics)",
        default=None,
    )
    target_cache_bytes: int | None = _count(
        "bytes",
        "key-value cache of the target, its spare slot included; 0 in records that did not count it yet",
        default=None,
    )
    drafter_cache_bytes: int | None = _count(
        "bytes",
        "key-value cache of the drafter, its spare slot included; 0 for a drafter without one, and in records that did "
        "not count it yet",
        default=None,
    )
    graph_bytes: int | None = _count(
        "bytes",
        "memory of the steps that were captured as CUDA graphs, in torch's pool for them; 0 without them, and in "
        "records that did not count it yet; cells that differ in constraint alone share it, and the caches",
        default=None,
    )
    num_target_parameters: int | None = _count("", "parameters of the target", default=None)
    num_drafter_parameters: int | None = _count("", "parameters of the drafter", default=None)
    num_skipped_turns: int = _count("", "turns left out because they did not fit", default=0)
    fallbacks: tuple[str, ...] = ()
    """Everything that changed speed or results without being asked for."""
    assumptions: tuple[str, ...] = ()
    """What the files of its models do not say and was taken, or what the user vouched for (accept_unknown)."""
    rounded_weights: str = ""
    """How the target's checkpoint was rounded to fewer bits, as a label such as `gptq weights, 4 bits`; empty where it
    was not, or its files do not say."""
    aux_layers: tuple[Int64, ...] = ()
    """Layers of the target, counted from 0, whose entering states the drafter reads; empty where it reads none, and in
    records that did not name them yet."""
    drafter_positions: Int64 = 0
    """Positions that the drafter's file names (max_position_embeddings); 0 where it names none, and in records that did
    not name them yet."""
    shared_mass: float | None = None
    """Probability that a draft model of another tokenizer gave the tokens that it shares with the target, uncut at
    temperature 1: the mean over its draft rows in all sessions of the cell, those of the warm-ups and of cells that run
    on the same engine included; None for other drafters."""
    labels: tuple[str, ...] = ()
    """Printed with every number of the cell: lossy, biased, synthetic, weights: random."""
    knowledge: Knowledge = Knowledge.rounds
    blocks: tuple[Block, ...] = ()
    """Empty in records that are older than schema 3."""
    more_provenances: tuple[Mapping[str, Any], ...] = ()
    """Of blocks that were measured elsewhere or later than the first."""
    failures: tuple[Failure, ...] = ()
    """A cell that failed as a whole has no requests."""
    schema_version: Int64 = SCHEMA_VERSION

    def __post_init__(self) -> None:
        if self.schema_version not in READABLE_VERSIONS:
            raise InconsistentRecordError(unreadable(self.schema_version))
        if not _FILE_NAME.fullmatch(self.cell_id):
            raise InconsistentRecordError(
                f"cell_id: expected a file name of letters, digits, _ and -, found {shown(self.cell_id)}"
            )
        if not (0 <= self.wall_s < math.inf) or (self.wall_s == 0 and self.requests):
            raise InconsistentRecordError(f"a cell with requests took time, found wall_s = {self.wall_s}")
        for name in COUNTED_FIELDS:
            if not 0 <= (getattr(self, name) or 0) < 2**63:
                raise InconsistentRecordError(f"{name}: expected 0 or more in 64 bits, found {getattr(self, name)}")
        keys = [item.key for item in self.requests]
        if len(set(keys)) != len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise InconsistentRecordError(f"request (prompt, turn, sample) = {twice} is recorded twice")
        self._check_knowledge()
        self._check_blocks()

    @property
    def has_failed(self) -> bool:
        """Whether the whole cell failed."""
        return bool(self.failures) and not self.requests

    @property
    def num_failed_requests(self) -> int:
        """Requests without an answer; failures of other kinds do not count."""
        return sum(item.request is not None for item in self.failures)

    @property
    def provenances(self) -> tuple[Mapping[str, Any], ...]:
        """All of them; a block names its own by the place."""
        return (self.provenance, *self.more_provenances)

    @property
    def beside_s(self) -> float:
        """Seconds of the backend's calls in which the clock stood; NaN where that is not known."""
        calls = [math.nan if item.call_s is None else item.call_s - item.wall_s for item in self.blocks]
        return sum(calls) if calls else math.nan

    @property
    def sessions(self) -> tuple[str, ...]:
        """Processes that measured it, in the order of its blocks; none where blocks are not known."""
        return tuple(dict.fromkeys(item.session for item in self.blocks))

    @property
    def request_sessions(self) -> tuple[str, ...]:
        """The session of each request; empty texts where blocks are not known."""
        found = tuple(item.session for item in self.blocks for _ in range(item.num_requests))
        return found or ("",) * len(self.requests)

    def _check_knowledge(self) -> None:
        """What the cell claims to know is there."""
        missing = {
            Knowledge.rounds: ("rounds", any(not item.rounds for item in self.requests)),
            Knowledge.requests: (
                "counts or rounds",
                any(item.counts is None and not item.rounds for item in self.requests),
            ),
            Knowledge.blocks: (
                "blocks with counts",
                bool(self.requests and not self.blocks) or any(item.counts is None for item in self.blocks),
            ),
            Knowledge.arrivals: ("", False),
        }
        what, is_missing = missing[self.knowledge]
        if is_missing:
            raise InconsistentRecordError(f"knowledge = {self.knowledge.value}: expected {what} in all of them")

    def _check_blocks(self) -> None:
        num_requests = sum(item.num_requests for item in self.blocks)
        if self.blocks and num_requests != len(self.requests):
            raise InconsistentRecordError(
                f"blocks: expected {len(self.requests)} requests in all, found {num_requests}"
            )
        if any(not 0 <= item.provenance < len(self.provenances) for item in self.blocks):
            raise InconsistentRecordError(f"blocks: expected one of {len(self.provenances)} provenances in each")


COUNTED_FIELDS = tuple(item.name for item in fields(CellRecord) if "definition" in item.metadata)
"""Fields of a cell that are columns of the results."""


def unreadable(schema_version: Any, readable: Sequence[int] = READABLE_VERSIONS) -> str:
    """The message for another schema."""
    is_newer = isinstance(schema_version, int) and schema_version > readable[-1]
    advice = "update this program" if is_newer else "run the cell again"
    *others, last = map(str, readable)
    known = f"{', '.join(others)} and {last}"
    return f"has schema {shown(schema_version)}, this version reads {known}; {advice}"
