"""Files of cell records: JSON, the identity of a cell, and writing that never leaves half a file.

This module knows the records of `harness.records.schema`; it does not know what they mean.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from harness.records.schema import (
    COUNTS_OF_A_CELL,
    SCHEMA_VERSION,
    CellRecord,
    CutReason,
    FinishReason,
    InconsistentRecordError,
    RequestRecord,
    RoundRecord,
)


def identity(determinants: Mapping[str, Any]) -> str:
    """The identity of a cell: a hash of what determines its result.

    It is the first 16 hex digits of the SHA-256 of the determinants as canonical JSON.
    """
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
_CONSTRAINT_COLUMNS = {
    "num_free_tokens": None,
    "num_cut_tokens": 0,
    "host_us": 0.0,
    "is_whole": None,
    "num_held_steps": 0,
}
"""Columns that are written only where some round differs from these values, and may be missing."""
_CONSTRAINT_FIELDS = ("num_reasoning_tokens", "answer_is_valid")
"""Fields of a request that are written only where they are known."""


def _request_to_json(request: RequestRecord) -> dict[str, Any]:
    rounds: dict[str, Any] = {name: [getattr(item, name) for item in request.rounds] for name in _ROUND_COLUMNS}
    rounds["cut_reason"] = [item.cut_reason.value if item.cut_reason else None for item in request.rounds]
    for name, absent in _CONSTRAINT_COLUMNS.items():
        values = [getattr(item, name) for item in request.rounds]
        if any(value != absent for value in values):
            rounds[name] = values
    plain = ("prompt_id", "category", "turn", "sample", "seed", "num_prompt_tokens", "submitted_s")
    known = {name: getattr(request, name) for name in _CONSTRAINT_FIELDS if getattr(request, name) is not None}
    return (
        {name: getattr(request, name) for name in plain}
        | known
        | {
            "output_token_ids": list(request.output_token_ids),
            "finish_reason": request.finish_reason.value,
            "rounds": rounds,
        }
    )


def _request_from_json(data: dict[str, Any]) -> RequestRecord:
    columns = dict(data.pop("rounds"))
    columns["cut_reason"] = [CutReason(value) if value else None for value in columns["cut_reason"]]
    columns["expected_accepted"] = [None if value is None else tuple(value) for value in columns["expected_accepted"]]
    num_rounds = len(columns["cut_reason"])
    columns = {name: [absent] * num_rounds for name, absent in _CONSTRAINT_COLUMNS.items()} | columns
    names = tuple(item.name for item in fields(RoundRecord))
    if set(columns) != set(names):
        raise InconsistentRecordError(f"rounds: expected the columns {sorted(names)}, found {sorted(columns)}")
    rounds = tuple(RoundRecord(*row) for row in zip(*(columns[name] for name in names), strict=True))
    data["output_token_ids"] = tuple(data["output_token_ids"])
    data["finish_reason"] = FinishReason(data["finish_reason"])
    return RequestRecord(**data, rounds=rounds)


_CELL_PLAIN = (
    "schema_version",
    "cell_id",
    "config",
    "provenance",
    "wall_s",
    *COUNTS_OF_A_CELL,
    "fallbacks",
    "labels",
)


def write_cell(cell: CellRecord, folder: Path) -> Path:
    """Write a cell to `folder`/<cell_id>.json.gz, atomically; returns the path."""
    data = {name: getattr(cell, name) for name in _CELL_PLAIN} | {
        "requests": [_request_to_json(item) for item in cell.requests]
    }
    path = folder / f"{cell.cell_id}.json.gz"
    write_atomically(path, gzip.compress(json.dumps(data, allow_nan=False).encode(), compresslevel=6, mtime=0))
    return path


def read_cell(path: Path) -> CellRecord:
    """Read a cell; raises ValueError with the path when the file is not a consistent record of this schema."""
    try:
        data = json.loads(gzip.decompress(path.read_bytes()))
        if data["schema_version"] != SCHEMA_VERSION:
            raise InconsistentRecordError(
                f"record has schema {data['schema_version']}, this version reads {SCHEMA_VERSION}; run the cell again"
            )
        requests = tuple(_request_from_json(item) for item in data.pop("requests"))
        data["fallbacks"], data["labels"] = tuple(data["fallbacks"]), tuple(data["labels"])
        return CellRecord(**data, requests=requests)
    except InconsistentRecordError as error:
        raise ValueError(f"{path}: {error}") from error
    except (OSError, EOFError, zlib.error, KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{path}: expected a cell record of schema {SCHEMA_VERSION}, found {type(error).__name__}: {error}"
        ) from error
