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
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from harness.records import InconsistentRecordError
from harness.records.counts import Arrival, DraftCounts, Knowledge
from harness.records.request import CutReason, FinishReason, RequestRecord, RoundRecord, TokenLogprobs
from harness.records.schema import (
    COUNTED_FIELDS,
    READABLE_VERSIONS,
    SCHEMA_VERSION,
    Block,
    CellRecord,
    Failure,
    unreadable,
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


_OPTIONAL_ROUND_COLUMNS = {
    item.name: item.default
    for item in fields(RoundRecord)
    if item.default is not MISSING and item.name != "expected_accepted"
}
"""Columns that are written only where some round differs from these values, and may be missing."""
_ROUND_COLUMNS = tuple(
    item.name for item in fields(RoundRecord) if item.name not in (*_OPTIONAL_ROUND_COLUMNS, "cut_reason")
)
_OPTIONAL_REQUEST_FIELDS = ("num_reasoning_tokens", "answer_is_valid", "counts", "sampling", "logprobs")
"""Fields of a request that are written only where they are known."""
_OPTIONAL_CELL_FIELDS = ("blocks", "more_provenances", "failures")
"""Fields of a cell that are written only where they are not empty."""


def request_to_json(request: RequestRecord) -> dict[str, Any]:
    """A request as plain JSON values, its rounds by column."""
    plain = ("prompt_id", "category", "turn", "sample", "seed", "num_prompt_tokens", "submitted_s")
    data = {name: getattr(request, name) for name in plain}
    data |= {
        name: plain_json(value) for name in _OPTIONAL_REQUEST_FIELDS if (value := getattr(request, name)) is not None
    }
    data |= {"output_token_ids": list(request.output_token_ids), "finish_reason": request.finish_reason.value}
    if not request.rounds:
        return data | {
            "arrivals": {
                name: list(row) for name, row in zip(Arrival._fields, zip(*request.arrivals, strict=True), strict=True)
            }
        }
    rounds: dict[str, Any] = {name: [getattr(item, name) for item in request.rounds] for name in _ROUND_COLUMNS}
    rounds["cut_reason"] = [item.cut_reason.value if item.cut_reason else None for item in request.rounds]
    for name, absent in _OPTIONAL_ROUND_COLUMNS.items():
        values = [getattr(item, name) for item in request.rounds]
        if any(value != absent for value in values):
            rounds[name] = values
    return data | {"rounds": rounds}


def plain_json(value: Any) -> Any:
    """A value as JSON takes it; fields of a block, a failure or counts that have their default are left out."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return [plain_json(item) for item in value]
    if is_dataclass(value):
        return {
            item.name: plain_json(getattr(value, item.name)) for item in fields(value) if not _is_default(value, item)
        }
    return value


def _is_default(value: Any, item: Field[Any]) -> bool:
    default = item.default_factory() if item.default_factory is not MISSING else item.default
    return bool(getattr(value, item.name) == default)


def request_from_json(data: dict[str, Any]) -> RequestRecord:
    """A request from plain JSON values, which are used up."""
    if "arrivals" in data:
        columns = data["arrivals"]
        data["arrivals"] = tuple(
            Arrival(*row) for row in zip(*(columns[name] for name in Arrival._fields), strict=True)
        )
    else:
        data["rounds"] = _rounds_from_json(dict(data["rounds"]))
    if "counts" in data:
        data["counts"] = _counts_from_json(data["counts"])
    if "logprobs" in data:
        data["logprobs"] = TokenLogprobs.from_json(data["logprobs"])
    data["output_token_ids"] = tuple(data["output_token_ids"])
    data["finish_reason"] = FinishReason(data["finish_reason"])
    return RequestRecord(**data)


def _rounds_from_json(columns: dict[str, Any]) -> tuple[RoundRecord, ...]:
    columns["cut_reason"] = [CutReason(value) if value else None for value in columns["cut_reason"]]
    for name in ("expected_accepted", "path"):
        if name in columns:
            columns[name] = [None if value is None else tuple(value) for value in columns[name]]
    num_rounds = len(columns["cut_reason"])
    columns = {name: [absent] * num_rounds for name, absent in _OPTIONAL_ROUND_COLUMNS.items()} | columns
    names = tuple(item.name for item in fields(RoundRecord))
    if set(columns) != set(names):
        raise InconsistentRecordError(f"rounds: expected the columns {sorted(names)}, found {sorted(columns)}")
    return tuple(RoundRecord(*row) for row in zip(*(columns[name] for name in names), strict=True))


def _counts_from_json(data: dict[str, Any]) -> DraftCounts:
    values: dict[str, Any] = {name: tuple(item) if isinstance(item, list) else item for name, item in data.items()}
    return DraftCounts(**values)


def block_from_json(data: dict[str, Any]) -> Block:
    """A block from plain JSON values."""
    return Block(**data | ({"counts": _counts_from_json(data["counts"])} if "counts" in data else {}))


def failure_from_json(data: dict[str, Any]) -> Failure:
    """A failure from plain JSON values."""
    request = data.get("request")
    return Failure(**data | {"request": None if request is None else (request[0], request[1], request[2])})


def write_cell(cell: CellRecord, folder: Path) -> Path:
    """Write a cell to `folder`/<cell_id>.json.gz, atomically; returns the path."""
    kept = (item.name for item in fields(CellRecord) if item.name != "requests")
    data: dict[str, Any] = {"schema_version": cell.schema_version}
    data |= {name: plain_json(getattr(cell, name)) for name in kept}
    for name in _OPTIONAL_CELL_FIELDS:
        if not data[name]:
            del data[name]
    data["requests"] = [request_to_json(item) for item in cell.requests]
    path = folder / f"{cell.cell_id}.json.gz"
    write_atomically(path, gzip.compress(json.dumps(data, allow_nan=False).encode(), compresslevel=6, mtime=0))
    return path


def read_cell(path: Path) -> CellRecord:
    """Read a cell; raises ValueError with the path when the file is not a consistent record of a known schema."""
    try:
        data = json.loads(gzip.decompress(path.read_bytes()))
        if data["schema_version"] not in READABLE_VERSIONS:
            raise InconsistentRecordError(unreadable(data["schema_version"]))
        requests = tuple(request_from_json(item) for item in data.pop("requests"))
        for name, read in (("blocks", block_from_json), ("failures", failure_from_json)):
            data[name] = tuple(read(item) for item in data.get(name, ()))
        for name in ("fallbacks", "labels", "more_provenances"):
            data[name] = tuple(data.get(name, ()))
        if data["schema_version"] == 2:
            # caches and graphs were not counted from the start
            data = dict.fromkeys(COUNTED_FIELDS, 0) | data
        data["knowledge"] = Knowledge(data.get("knowledge", Knowledge.rounds.value))
        return CellRecord(**data, requests=requests)
    except InconsistentRecordError as error:
        raise ValueError(f"{path}: {error}") from error
    except (OSError, EOFError, zlib.error, KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{path}: expected a cell record of schema {SCHEMA_VERSION}, found {type(error).__name__}: {error}"
        ) from error
