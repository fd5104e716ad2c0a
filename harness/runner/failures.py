"""A cell that cannot be run, as a record: its error and where in the code it came from; knows no turns, no workers."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.backends.backend import backend_class
from harness.config.cell import CellConfig
from harness.config.guarantee import labels
from harness.config.identity import determinants
from harness.config.own_code import own_place, place_of
from harness.models.rank_died import RankDiedError
from harness.records.files import identity
from harness.records.provenance import provenance
from harness.records.schema import CellRecord, Failure
from harness.runner.cell_record import recorded_config
from harness.workload.conversations import Conversation, fingerprint


class DeviceLostError(ValueError):
    """After an error on the GPU, or the end of a rank, this process can compute nothing more there."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"this process can compute nothing more after {failure.reason}; run the same command again")
        self.failure = failure


def failure_of(error: BaseException, **settings: Any) -> Failure:
    """An error as a record keeps it: files by their place in a package, so that no folder of the machine is named.

    Where it came out of code of the user's own, its message says so.
    """
    found = traceback.TracebackException.from_exception(error)
    cause: traceback.TracebackException | None = found
    while cause is not None:
        for frame in cause.stack:
            frame.filename = place_of(Path(frame.filename))
        cause = cause.__cause__ or cause.__context__
    return Failure(type(error).__name__, f"{error}{own_place(error)}", "".join(found.format()), settings)


def failed_id(cell: CellConfig, played: Sequence[Conversation]) -> str:
    """The id of the record of a cell that failed as a whole; it needs no weights, and no other record has it.

    Without prompts the settings that choose them take their place, so that cells with other prompts have other ids.
    """
    prompts = fingerprint(item.prompt for item in played if item.sample == 0) if played else None
    return identity(determinants(backend_class(cell.backend).resolved(cell), prompts))


def failed_record(
    cell: CellConfig, failure: Failure, played: Sequence[Conversation], warnings: Sequence[str]
) -> CellRecord:
    """The record of a cell that failed as a whole: no requests, and `failed_id`."""
    resolved = backend_class(cell.backend).resolved(cell)
    return CellRecord(
        cell_id=failed_id(cell, played),
        config=recorded_config(cell, resolved),
        provenance=provenance(imported={path: path.source_digest() for path in cell.imported.values()}),
        requests=(),
        wall_s=0.0,
        failures=(failure,),
        fallbacks=tuple(warnings),
        labels=labels(cell),
    )


def device_is_lost(error: BaseException) -> bool:
    """Whether no more work can be done on the device in this process after an error: one of CUDA stays until the
    process ends, and ranks without one of them compute nothing."""
    if isinstance(error, RankDiedError):
        return True
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
