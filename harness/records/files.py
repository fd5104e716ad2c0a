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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields, is_dataclass, make_dataclass
from enum import Enum
from functools import cache
from itertools import repeat
from pathlib import Path
from types import GenericAlias
from typing import Any, get_type_hints

from msgspec import NODEFAULT
from msgspec.structs import fields as struct_fields

from harness.records import InconsistentRecordError
from harness.records.counts import Arrival
from harness.records.gc_off import gc_off
from harness.records.request import RequestRecord, RoundRecord
from harness.records.schema import (
    COUNTED_FIELDS,
    READABLE_VERSIONS,
    SCHEMA_VERSION,
    CellRecord,
    unreadable,
)
from harness.records.strict_json import at, at_each, parse_json, shown, typed


def identity(determinants: Mapping[str, Any]) -> str:
    """The identity of a cell: a hash of what determines its result.

    It is the first 16 hex digits of the SHA-256 of the determinants as canonical JSON.
    """
    text = json.dumps(determinants, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class UnwritableError(OSError):
    """A file of the results cannot be written: the disk is full, or the folder is gone or read-only."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError into an UnwritableError that names the file and what to do."""
    try:
        yield
    except OSError as error:
        raise UnwritableError(
            f"{path}: expected to write this file, found: {error.strerror or error}; what was written before is kept, "
            "and the same command goes on from there"
        ) from error


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old content or the new, never a part.

    Raises:
        UnwritableError: it cannot be written.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(_PARTIAL, f".{path.name}.", path.parent)
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


_PARTIAL = ".partial"
"""How the name of a file ends that is not whole yet."""


def remove_partial(folder: Path) -> None:
    """Remove what a process left in a folder, and below, that ended while it wrote a file; no other may write there."""
    for path in folder.rglob(f".*{_PARTIAL}"):
        path.unlink(missing_ok=True)


_OPTIONAL_ROUND_COLUMNS = {
    item.name: item.default
    for item in struct_fields(RoundRecord)
    if item.default is not NODEFAULT and item.name != "expected_accepted"
}
"""Columns that are written only where some round differs from these values, and may be missing."""
_ROUND_COLUMNS = tuple(
    name for name in RoundRecord.__struct_fields__ if name not in (*_OPTIONAL_ROUND_COLUMNS, "cut_reason")
)
_OPTIONAL_REQUEST_FIELDS = (
    "num_reasoning_tokens",
    "answer_is_valid",
    "answer_is_right",
    "counts",
    "sampling",
    "logprobs",
    "stop",
)
"""Fields of a request that are written only where they are known."""
_OPTIONAL_CELL_FIELDS = (
    "assumptions",
    "rounded_weights",
    "aux_layers",
    "drafter_positions",
    "shared_mass",
    "blocks",
    "more_provenances",
    "failures",
)
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


def request_from_json(data: Any) -> RequestRecord:
    """A request from plain JSON values, which are used up."""
    if not isinstance(data, dict):
        raise InconsistentRecordError(f"expected an object, found {shown(data)}")
    for name, kind in (("rounds", RoundRecord), ("arrivals", Arrival)):
        if name in data:
            data[name] = at(name, _from_columns, kind, data[name])
    request: RequestRecord = typed(RequestRecord, data)
    return request


@cache
def _columns_of(kind: Any) -> Any:
    """A dataclass with a column for each field of rounds or arrivals; those of rounds that may be missing are empty."""
    hints = get_type_hints(kind, include_extras=True)
    columns: dict[str, Any] = {name: GenericAlias(tuple, (hint, ...)) for name, hint in hints.items()}
    may_be_missing = _OPTIONAL_ROUND_COLUMNS if kind is RoundRecord else {}
    needed = [(name, column) for name, column in columns.items() if name not in may_be_missing]
    return make_dataclass(f"{kind.__name__}Columns", [*needed, *((name, columns[name], ()) for name in may_be_missing)])


def _from_columns(kind: Any, columns: Any) -> tuple[Any, ...]:
    """Rounds or arrivals."""
    found = {name: column for name, column in vars(typed(_columns_of(kind), columns)).items() if name in columns}
    sizes = {name: len(column) for name, column in found.items()}
    if len({*sizes.values()}) > 1:
        raise InconsistentRecordError(f"expected columns of one length, found {sizes}")
    rows = zip(
        *(found[name] if name in found else repeat(_OPTIONAL_ROUND_COLUMNS[name]) for name in kind.__annotations__),
        strict=False,
    )
    made: list[Any] = []
    try:
        for row in rows:
            made.append(kind(*row))
    except ValueError as error:
        raise ValueError(f"[{len(made)}]: {error}") from error
    return tuple(made)


BRING_BACK = "bring it back, or give the command of the run again, which sets it aside and runs the cell again"
"""What to do about a record that is not as the run wrote it."""
SUFFIX = ".json.gz"
"""How the name of a record ends, after the cell's id."""


def write_cell(cell: CellRecord, folder: Path) -> Path:
    """Write a cell to `folder`/<cell_id>.json.gz, atomically; returns the path."""
    kept = (item.name for item in fields(CellRecord) if item.name != "requests")
    data: dict[str, Any] = {"schema_version": cell.schema_version}
    data |= {name: plain_json(getattr(cell, name)) for name in kept}
    for name in _OPTIONAL_CELL_FIELDS:
        if not data[name]:
            del data[name]
    data["requests"] = [request_to_json(item) for item in cell.requests]
    path = folder / f"{cell.cell_id}{SUFFIX}"
    write_atomically(path, gzip.compress(json.dumps(data, allow_nan=False).encode(), compresslevel=6, mtime=0))
    return path


def read_cell(path: Path) -> CellRecord:
    """Read a cell; raises ValueError with the path when the file is not a consistent record of a known schema."""
    try:
        with gc_off():
            return _cell_from_json(parse_json(gzip.decompress(path.read_bytes())))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: expected a whole gzip file, found a damaged one ({error}); {BRING_BACK}") from error
    except (OSError, KeyError, TypeError) as error:
        found = f"no {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
        raise ValueError(f"{path}: expected a cell record of schema {SCHEMA_VERSION}, found {found}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _cell_from_json(data: Any) -> CellRecord:
    if data["schema_version"] not in READABLE_VERSIONS:
        raise InconsistentRecordError(unreadable(data["schema_version"]))
    if data["schema_version"] == 2:
        # caches and graphs were not counted from the start
        data = dict.fromkeys(COUNTED_FIELDS, 0) | data
    data["requests"] = at_each("requests", request_from_json, data["requests"])
    cell: CellRecord = typed(CellRecord, data)
    return cell
