"""The cells of a folder of recordings: one for each method and sampling, written where `replay` reads them.

Requests with the same target, drafter, method, temperature, cuts and limit of tokens form one cell. A prompt, the unit
of resampling, is identified by its tokens: a second turn is a prompt of its own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.backends.recordings.read import (
    About,
    Header,
    RecordedRequest,
    RecordingFile,
    read_recording,
    recordings_at,
)
from harness.backends.recordings.to_records import Converted, LeftOut, converted
from harness.config.backend import RunByOwn
from harness.config.cell import CellConfig
from harness.config.drafter import DrafterKind, drafter_of
from harness.config.drafting import CacheDtype, DraftingConfig, DraftSamplingChoice
from harness.config.guarantee import guarantee, labels
from harness.config.identity import plain_values
from harness.config.imported import ImportPath
from harness.config.models import TargetConfig
from harness.config.sections import DecodingConfig, MeasurementConfig
from harness.config.workload import WorkloadConfig
from harness.records.acceptance_terms import collect_terms, write_terms
from harness.records.files import identity, write_cell
from harness.records.runs import CELLS
from harness.records.schema import CellRecord
from harness.records.strict_json import at, shown
from kernels.verification import Verification

WORKER = "harness.plugins.vllm:WorkerExtension"
"""`backend.kind` of the cells: what generated."""
PROMPTS = "the recorded requests"
NOT_ENDED = "recording not ended"
TIMES = "recorded inside vLLM {}: times hold the recording and are no measure of speed"
NOTHING = "{}: expected requests that were recorded whole, found none: {}"


@dataclass
class _Cell:
    """What goes into one cell."""

    config: dict[str, Any]
    labels: tuple[str, ...]
    files: list[RecordingFile] = field(default_factory=list)
    found: list[Converted] = field(default_factory=list)
    num_of_prompt: Counter[str] = field(default_factory=Counter)


def write_cells(folder: Path) -> list[str]:
    """Write the cells of the recordings in a folder to its cells/.

    A cell of the same settings is overwritten, so that a recording that has grown replaces its cells.

    Returns:
        What is missing or left out, a line each.

    Raises:
        ValueError: no request was recorded whole, or a file is damaged.
    """
    files, notes = [], []
    for path in recordings_at(folder):
        file = read_recording(path)
        notes += [f"{path.name} ends before it says what ran"] if file is None else _file_notes(file)
        files += [] if file is None else [file]
    left_out: Counter[str] = Counter()
    cells: dict[str, _Cell] = {}
    for file in files:
        start_s = min((item.about.submitted_s for item in file.requests), default=0.0)
        for request in file.requests:
            try:
                at(f"{file.path}: request {shown(request.about.id)}", _add, cells, file, request, start_s)
            except LeftOut as reason:
                left_out[str(reason)] += 1
    notes += [f"{count} requests are left out: they {reason}" for reason, count in left_out.items()]
    kept = [cell for cell in cells.values() if cell.found]
    if not kept:
        raise ValueError(NOTHING.format(folder, "; ".join(notes) or "no request came while they recorded"))
    for cell in kept:
        record = _record(cell, notes)
        # before the record, which names them
        write_terms(collect_terms(record.cell_id, [item.terms for item in cell.found]), folder / CELLS)
        write_cell(record, folder / CELLS)
    return notes


def _add(cells: dict[str, _Cell], file: RecordingFile, request: RecordedRequest, start_s: float) -> None:
    """Put a request into its cell; raises LeftOut where it is not kept."""
    cell = _cell_of(cells, file, request)
    prompt = request.about.prompt
    cell.found.append(converted(request, cell.num_of_prompt[prompt], start_s))
    cell.num_of_prompt[prompt] += 1
    cell.files += [] if file in cell.files else [file]


def _file_notes(file: RecordingFile) -> list[str]:
    """What a recording lacks, a line each."""
    notes = []
    if not file.is_ended:
        why = (
            f"could not go on: {file.failure}"
            if file.failure
            else "was not ended by stop_recording: its worker was shut down, died, or still runs"
        )
        torn = f"; {file.num_torn} bytes of a frame were not written whole" if file.num_torn else ""
        notes.append(f"{file.path.name} {why}{torn}; the last rounds are missing")
    if file.num_unknown:
        notes.append(f"{file.num_unknown} rounds of requests that ran before the recording are left out")
    return notes


def _cell_of(cells: dict[str, _Cell], file: RecordingFile, request: RecordedRequest) -> _Cell:
    cell = _config(file.header, request.about)
    found = {"draft_sampling": cell.draft_sampling.value, "guarantee": guarantee(cell).value}
    found |= {name: getattr(file.header, name) for name in ("device", "dtype")}
    config = plain_values(cell) | found
    return cells.setdefault(identity(config), _Cell(config, labels(cell)))


def _config(header: Header, about: About) -> CellConfig:
    """The settings of a request's cell."""
    kind = header.drafter
    has_path = kind not in (DrafterKind.mtp, DrafterKind.ngram)
    dtype = header.draft_dtype
    sampling = {name: getattr(about, name) for name in ("temperature", "top_k", "top_p", "min_p")}
    return CellConfig(
        target=TargetConfig(path=header.target),
        drafter=drafter_of(kind, **({"path": header.drafter_path} if has_path else {})),
        drafting=DraftingConfig(
            num_speculative_tokens=header.num_speculative_tokens,
            sampling=DraftSamplingChoice.greedy if dtype is None else DraftSamplingChoice.sampled,
            cache_dtype=CacheDtype.auto if dtype is None else dtype,
        ),
        decoding=DecodingConfig(**sampling, max_new_tokens=about.max_tokens, ignore_eos=about.ignore_eos),
        verification=Verification(header.method),
        workload=WorkloadConfig(path=PROMPTS),
        backend=RunByOwn(builder=ImportPath(WORKER), device=header.device, dtype=header.dtype),
        measurement=MeasurementConfig(baseline=False, round_terms=True),
    )


def _record(cell: _Cell, notes: Sequence[str]) -> CellRecord:
    header = cell.files[0].header
    requests = tuple(item.record for item in cell.found)
    last_s = max(item.rounds[-1].arrival_s for item in requests)
    began = datetime.fromtimestamp(header.start_unix_s, UTC).isoformat(timespec="seconds")
    not_ended = (NOT_ENDED,) if not all(file.is_ended for file in cell.files) else ()
    return CellRecord(
        cell_id=identity({"config": cell.config, "recorded": WORKER}),
        config=cell.config,
        provenance={
            "time_utc": began,
            "packages": header.libraries,
            "gpu": None if header.gpu is None else {"name": header.gpu},
            "sampling_core": header.core,
        },
        requests=requests,
        wall_s=max(last_s - min(item.submitted_s for item in requests), math.ulp(1.0)),
        fallbacks=(TIMES.format(header.libraries["vllm"]), *notes),
        labels=(*cell.labels, *not_ended),
    )
