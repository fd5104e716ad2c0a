"""Files of acceptance terms: `<cell_id>.terms.npz` beside the cell's record.

This module knows the terms of `harness.records.acceptance_terms`; it does not know what follows from them.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np

from harness.records import InconsistentRecordError
from harness.records.acceptance_terms import RoundTerms
from harness.records.files import write_atomically

TERMS_VERSION = 1
TERMS_SUFFIX = ".terms.npz"


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
    except (OSError, EOFError, zipfile.BadZipFile, KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{path}: expected terms of version {TERMS_VERSION}, found {type(error).__name__}: {error}"
        ) from error
