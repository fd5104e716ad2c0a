"""The terms of a cell's drafts: per draft position the probabilities from which every method's acceptance follows.

A file `<cell_id>.terms.npz` lies beside the cell's record when `measurement.round_terms` is set. It holds the drafts
for which the record holds expected acceptance: those that count in full and were not verified under a grammar's masks,
for which terms are not defined. A draft is found in the record by its
request's key and the index of its round there. One more number per position or per draft is named in
`harness.records.term_columns` (`is_required=False`) and given in `harness.engine.measure_drafts`; nothing else needs to
know it.

Shapes: D drafts, N draft positions of all drafts, draft after draft, K the largest number of draft tokens.
This module knows records and the file beside them; it does not know how terms are computed or what follows from them.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness.records import InconsistentRecordError
from harness.records.files import write_atomically
from harness.records.request import ROUNDING, RequestRecord
from harness.records.schema import CellRecord
from harness.records.strict_json import shown
from harness.records.term_columns import COLUMNS

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
RequestKey = tuple[str, int, int]
"""RequestRecord.key: prompt, turn, copy."""


@dataclass(frozen=True)
class DraftTerms:
    """The terms of one draft."""

    round_index: int
    """Of the round in its request's record."""
    values: Mapping[str, Floats]
    """Column -> [number of draft tokens], or [] for a column of whole drafts."""


@dataclass(frozen=True)
class RequestTerms:
    """The terms of a request's full drafts, in the order of their rounds; d drafts with n positions in all."""

    key: RequestKey
    round_index: Integers
    """[d]"""
    num_draft_tokens: Integers
    """[d]"""
    values: Mapping[str, Floats]
    """Column -> [n], or [d] for a column of whole drafts; empty without drafts."""

    @staticmethod
    def of(key: RequestKey, drafts: Sequence[DraftTerms]) -> RequestTerms:
        """Put drafts together; all have the same columns."""
        columns = list(drafts[0].values) if drafts else []
        return RequestTerms(
            key,
            np.array([item.round_index for item in drafts], dtype=np.int64),
            np.array([len(item.values["target_prob"]) for item in drafts], dtype=np.int64),
            {name: np.concatenate([np.atleast_1d(item.values[name]) for item in drafts]) for name in columns},
        )


@dataclass(frozen=True)
class RoundTerms:
    """The terms of a cell; cannot be built inconsistent."""

    cell_id: str
    keys: tuple[RequestKey, ...]
    """The requests that have full drafts."""
    request: Integers
    """[D] index of the draft's request in `keys`, not decreasing."""
    round_index: Integers
    """[D] increasing within a request."""
    num_draft_tokens: Integers
    """[D], 1 or more."""
    values: Mapping[str, Floats]
    """Column -> [N], or [D] for a column of whole drafts."""

    def __post_init__(self) -> None:
        if len(set(self.keys)) != len(self.keys):
            raise InconsistentRecordError("terms: a request (prompt, turn, sample) is there twice")
        self._check_drafts()
        required = {name for name, column in COLUMNS.items() if column.is_required}
        if not required <= set(self.values) <= set(COLUMNS):
            raise InconsistentRecordError(
                f"terms: expected the columns {sorted(required)}, possibly others of harness/records/term_columns.py; "
                f"found {shown(', '.join(sorted(self.values)))}"
            )
        for name, values in self.values.items():
            self._check_column(name, values)

    def _check_drafts(self) -> None:
        shape = (len(self.request),)
        if not all(item.shape == shape for item in (self.request, self.round_index, self.num_draft_tokens)):
            raise InconsistentRecordError("terms: request, round_index and num_draft_tokens must be of one length")
        if len(self.request) == 0:
            return
        step, later = np.diff(self.request), np.diff(self.round_index)
        if (
            self.request.min() < 0
            or self.request.max() >= len(self.keys)
            or bool(((step < 0) | (later < 1) & (step == 0)).any())
        ):
            raise InconsistentRecordError("terms: drafts must be ordered by request and round, each there once")
        if self.num_draft_tokens.min() < 1 or self.round_index.min() < 0:
            raise InconsistentRecordError("terms: expected 1 draft token or more and rounds from 0 on in every draft")

    def _check_column(self, name: str, values: Floats) -> None:
        column = COLUMNS[name]
        size = len(self.request) if column.is_of_draft else int(self.num_draft_tokens.sum())
        if values.shape != (size,):
            raise InconsistentRecordError(f"terms, {name}: expected {size} values, found shape {values.shape}")
        inside = (values >= column.low - ROUNDING) & (values <= column.high + ROUNDING)
        if not bool(inside.all() and np.isfinite(values).all()):
            wrong = values[~(inside & np.isfinite(values))][0]
            raise InconsistentRecordError(
                f"terms, {name}: expected finite values in [{column.low}, {column.high}], found {wrong}"
            )

    @property
    def num_positions(self) -> int:
        """K."""
        return int(self.num_draft_tokens.max(initial=0))

    @property
    def drafted(self) -> NDArray[np.bool_]:
        """[D, K] whether a draft has a token at a position."""
        return np.arange(self.num_positions) < self.num_draft_tokens[:, None]

    def of_positions(self, name: str) -> Floats:
        """[D, K] a column of positions; 0 where a draft has no token.

        Raises:
            KeyError: the file does not have it.
        """
        assert not COLUMNS[name].is_of_draft
        table = np.zeros(self.drafted.shape)
        table[self.drafted] = self.values[name]
        return table


def collect_terms(cell_id: str, requests: Iterable[RequestTerms]) -> RoundTerms:
    """Put the terms of a cell's requests together; those without full drafts are left out."""
    kept = [item for item in requests if len(item.round_index)]
    columns = list(kept[0].values) if kept else list(COLUMNS)
    nothing = np.empty(0)
    return RoundTerms(
        cell_id=cell_id,
        keys=tuple(item.key for item in kept),
        request=np.repeat(np.arange(len(kept)), [len(item.round_index) for item in kept]).astype(np.int64),
        round_index=np.concatenate([nothing, *(item.round_index for item in kept)]).astype(np.int64),
        num_draft_tokens=np.concatenate([nothing, *(item.num_draft_tokens for item in kept)]).astype(np.int64),
        values={name: np.concatenate([nothing, *(item.values[name] for item in kept)]) for name in columns},
    )


def check_terms_of(terms: RoundTerms, cell: CellRecord) -> None:
    """Check that the terms are those of a cell's measured drafts, all of them and no others.

    Raises:
        InconsistentRecordError: they are not.
    """
    if terms.cell_id != cell.cell_id:
        raise InconsistentRecordError(f"terms are of cell {terms.cell_id}, expected {cell.cell_id}")
    there = zip(terms.request.tolist(), terms.round_index.tolist(), terms.num_draft_tokens.tolist(), strict=True)
    found = {(terms.keys[request], index): count for request, index, count in there}
    expected = {(item.key, index): count for item in cell.requests for index, count in measured_drafts(item)}
    if found != expected:
        key, index = sorted(found.items() ^ expected.items())[0][0]
        raise InconsistentRecordError(
            f"terms of {len(found)} drafts beside a record that measured {len(expected)}, which differ first in "
            f"request {key}, round {index}; run the cell again"
        )


def measured_drafts(request: RequestRecord) -> list[tuple[int, int]]:
    """(index, number of draft tokens) of each round whose draft has terms where they are recorded."""
    return [
        (index, item.num_draft_tokens)
        for index, item in enumerate(request.rounds)
        if item.num_draft_tokens == item.num_proposed_tokens > 0 and item.expected_accepted is not None
    ]


def num_masked_drafts(cell: CellRecord) -> int:
    """Drafts of a cell with recorded terms that count in full and have none: verified under a grammar's masks."""
    rounds = (item for request in cell.requests for item in request.rounds)
    return sum(
        item.num_draft_tokens == item.num_proposed_tokens > 0 and item.expected_accepted is None for item in rounds
    )


TERMS_VERSION = 1
TERMS_SUFFIX = ".terms.npz"
_DAMAGED = (OSError, EOFError, zipfile.BadZipFile, zlib.error, KeyError, TypeError, ValueError, RuntimeError)
"""What NumPy and zipfile raise for a file that is not as it was written."""


_TYPES = {"version": "<i8", **dict.fromkeys(("cell_id", "prompt_id"), "U")}
_TYPES |= dict.fromkeys(("turn", "sample", "request", "round_index", "num_draft_tokens"), "<i8")
"""Name of an array -> its NumPy type, or kind of type; the terms themselves are float64."""


def terms_path(folder: Path, cell_id: str) -> Path:
    """Where the terms of a cell lie, in the folder of its record."""
    return folder / f"{cell_id}{TERMS_SUFFIX}"


def write_terms(terms: RoundTerms, folder: Path) -> Path:
    """Write terms to `folder`/<cell_id>.terms.npz, atomically; returns the path."""
    prompts, turns, samples = zip(*terms.keys, strict=True) if terms.keys else ((), (), ())
    arrays = {
        "version": np.array(TERMS_VERSION),
        "cell_id": np.array(terms.cell_id),
        "prompt_id": np.array(prompts, dtype=np.str_),
        "turn": np.array(turns, dtype=np.int64),
        "sample": np.array(samples, dtype=np.int64),
        "request": terms.request,
        "round_index": terms.round_index,
        "num_draft_tokens": terms.num_draft_tokens,
    } | {f"term.{name}": values for name, values in terms.values.items()}
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]
    path = terms_path(folder, terms.cell_id)
    write_atomically(path, stream.getvalue())
    return path


def read_terms(path: Path) -> RoundTerms:
    """Read terms; raises ValueError with the path when the file does not hold consistent terms of this version."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        if int(arrays["version"]) != TERMS_VERSION:
            raise InconsistentRecordError(
                f"terms of version {int(arrays['version'])}, this version reads {TERMS_VERSION}; run the cell again"
            )
        for name, values in arrays.items():
            expected = _TYPES.get(name, "<f8")
            if expected not in (values.dtype.kind, values.dtype.str):
                raise InconsistentRecordError(
                    f"terms, {name}: expected values of type {expected}, found {values.dtype}"
                )
        keys = zip(*(arrays[name].tolist() for name in ("prompt_id", "turn", "sample")), strict=True)
        return RoundTerms(
            cell_id=str(arrays["cell_id"]),
            keys=tuple(keys),
            request=arrays["request"],
            round_index=arrays["round_index"],
            num_draft_tokens=arrays["num_draft_tokens"],
            values={name.removeprefix("term."): arrays[name] for name in arrays if name.startswith("term.")},
        )
    except InconsistentRecordError as error:
        raise ValueError(f"{path}: {error}") from error
    except _DAMAGED as error:
        raise ValueError(
            f"{path}: expected terms of version {TERMS_VERSION}, found {type(error).__name__}: {shown(str(error))}"
        ) from error
