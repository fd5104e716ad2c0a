"""What a run leaves behind: rounds, requests, cells. The seam between the engine and everything that reads results.

Left of the records a GPU may be needed; right of them a laptop without torch is enough. A record cannot be built
inconsistent. Definitions of the counts: harness.metrics. This module does not know models, torch or Hydra.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 1


class CutReason(Enum):
    """Why tokens that verification had emitted were cut off the end of a round."""

    eos = "eos"
    length = "length"
    grammar = "grammar"


class FinishReason(Enum):
    """Why a request ended."""

    eos = "eos"
    length = "length"


class InconsistentRecordError(ValueError):
    """A record that contradicts itself."""


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise InconsistentRecordError(message)


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One round of one request. The draw that ends the prefill is a round without draft tokens."""

    num_proposed_tokens: int
    """Draft tokens the drafter produced for this round."""
    num_draft_tokens: int
    """K_r: draft tokens that count as evidence, those before the cut."""
    num_accepted_tokens: int
    """A_r: accepted draft tokens among them."""
    num_output_tokens: int
    """Tokens that this round added to the output."""
    cut_reason: CutReason | None
    arrival_s: float
    """When the tokens reached the host, in seconds since the measured phase of the cell began."""
    share_s: float
    """The duration of the engine step, divided by the number of requests that took part in it."""
    expected_accepted: tuple[float, float, float] | None = None
    """Expected accepted tokens given this round's drafts under strict, probabilistic and block (EXPECTED_METHODS)."""

    def __post_init__(self) -> None:
        _check(
            0 <= self.num_accepted_tokens <= self.num_draft_tokens <= self.num_proposed_tokens,
            f"expected 0 <= accepted <= drafted <= proposed, found {self.num_accepted_tokens}, "
            f"{self.num_draft_tokens}, {self.num_proposed_tokens}",
        )
        _check(
            self.num_accepted_tokens <= max(0, self.num_output_tokens - 1),
            f"{self.num_accepted_tokens} accepted tokens need {self.num_accepted_tokens + 1} output tokens, found {self.num_output_tokens}",
        )
        _check(
            self.cut_reason is not None or self.num_output_tokens == self.num_accepted_tokens + 1,
            f"a round without a cut emits accepted + 1 tokens, found {self.num_output_tokens} for {self.num_accepted_tokens} accepted",
        )


EXPECTED_METHODS = ("strict", "probabilistic", "block")


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request: one turn of one prompt, answered once."""

    prompt_id: str
    """The unit of resampling: every turn and every copy of a prompt carries the same id."""
    category: str
    turn: int
    sample: int
    """Copy of the prompt, 0 unless oversampled."""
    seed: int
    num_prompt_tokens: int
    output_token_ids: tuple[int, ...]
    finish_reason: FinishReason
    submitted_s: float
    """When the request entered the engine, in seconds since the measured phase of the cell began."""
    rounds: tuple[RoundRecord, ...]

    def __post_init__(self) -> None:
        emitted = sum(item.num_output_tokens for item in self.rounds)
        _check(
            emitted == len(self.output_token_ids),
            f"rounds emitted {emitted} tokens, the output holds {len(self.output_token_ids)}",
        )
        _check(bool(self.rounds), "a request has at least the round that ends its prefill")
        arrivals = [item.arrival_s for item in self.rounds]
        _check(arrivals == sorted(arrivals) and arrivals[0] >= self.submitted_s, "arrivals must not go back in time")


@dataclass(frozen=True, slots=True)
class CellRecord:
    """One cell of a sweep: one complete configuration and what it produced."""

    cell_id: str
    config: Mapping[str, Any]
    """The resolved configuration as plain values, with `draft_sampling`, `guarantee`, `device`, `dtype` resolved."""
    provenance: Mapping[str, Any]
    requests: tuple[RequestRecord, ...]
    wall_s: float
    """Duration of the measured phase: the sum over the cell's blocks."""
    draft_logit_cache_bytes: int
    num_target_parameters: int
    num_drafter_parameters: int
    num_skipped_prompts: int = 0
    """Prompts left out because they did not fit."""
    fallbacks: tuple[str, ...] = ()
    """Everything that changed speed or results without being asked for."""
    labels: tuple[str, ...] = ()
    """Printed with every number of the cell: lossy, biased, synthetic, weights: random."""
    schema_version: int = field(default=SCHEMA_VERSION)

    def __post_init__(self) -> None:
        _check(
            self.schema_version == SCHEMA_VERSION,
            f"record has schema {self.schema_version}, this version reads {SCHEMA_VERSION}; run the cell again",
        )
        _check(self.wall_s > 0 or not self.requests, f"a cell with requests took time, found wall_s = {self.wall_s}")


def identity(determinants: Mapping[str, Any]) -> str:
    """The identity of a cell: the first 16 hex digits of the SHA-256 of what determines its result, as canonical JSON."""
    text = json.dumps(determinants, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old content or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


_ROUND_COLUMNS = (
    "num_proposed_tokens",
    "num_draft_tokens",
    "num_accepted_tokens",
    "num_output_tokens",
    "arrival_s",
    "share_s",
    "expected_accepted",
)


def _request_to_json(request: RequestRecord) -> dict[str, Any]:
    rounds: dict[str, Any] = {name: [getattr(item, name) for item in request.rounds] for name in _ROUND_COLUMNS}
    rounds["cut_reason"] = [item.cut_reason.value if item.cut_reason else None for item in request.rounds]
    plain = ("prompt_id", "category", "turn", "sample", "seed", "num_prompt_tokens", "submitted_s")
    return {name: getattr(request, name) for name in plain} | {
        "output_token_ids": list(request.output_token_ids),
        "finish_reason": request.finish_reason.value,
        "rounds": rounds,
    }


def _request_from_json(data: dict[str, Any]) -> RequestRecord:
    columns = dict(data.pop("rounds"))
    columns["cut_reason"] = [CutReason(value) if value else None for value in columns["cut_reason"]]
    columns["expected_accepted"] = [None if value is None else tuple(value) for value in columns["expected_accepted"]]
    rows = zip(*columns.values(), strict=True)
    rounds = tuple(RoundRecord(**dict(zip(columns, row, strict=True))) for row in rows)
    data["output_token_ids"] = tuple(data["output_token_ids"])
    data["finish_reason"] = FinishReason(data["finish_reason"])
    return RequestRecord(**data, rounds=rounds)


_CELL_PLAIN = (
    "schema_version",
    "cell_id",
    "config",
    "provenance",
    "wall_s",
    "draft_logit_cache_bytes",
    "num_target_parameters",
    "num_drafter_parameters",
    "num_skipped_prompts",
    "fallbacks",
    "labels",
)


def write_cell(cell: CellRecord, folder: Path) -> Path:
    """Write a cell to `folder`/<cell_id>.json.gz, atomically; returns the path."""
    data = {name: getattr(cell, name) for name in _CELL_PLAIN} | {
        "requests": [_request_to_json(item) for item in cell.requests]
    }
    path = folder / f"{cell.cell_id}.json.gz"
    write_atomically(path, gzip.compress(json.dumps(data, allow_nan=False).encode(), mtime=0))
    return path


def read_cell(path: Path) -> CellRecord:
    """Read a cell; raises ValueError with the path when the file is not a record of this schema."""
    try:
        data = json.loads(gzip.decompress(path.read_bytes()))
        requests = tuple(_request_from_json(item) for item in data.pop("requests"))
        data["fallbacks"], data["labels"] = tuple(data["fallbacks"]), tuple(data["labels"])
        return CellRecord(**data, requests=requests)
    except InconsistentRecordError as error:
        raise ValueError(f"{path}: {error}") from error
    except (OSError, EOFError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path}: expected a cell record of schema {SCHEMA_VERSION}, found {type(error).__name__}: {error}"
        ) from error
