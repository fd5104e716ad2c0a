"""What earlier sessions left of a cell: which parts are kept, which are set aside, and what is started anew.

A cell's checkpoint lies in checkpoints/ of the run's folder. Its name begins with the cell's key: the hash of
everything that determines the result and is known before a weight is loaded. Its frames are the cell's parts;
when the record is written, one frame with the names and digests of the cell's files takes their place.
This module does not know how a cell is run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.records.checkpoint import Checkpoint, read_checkpoint, whole_file
from harness.records.fault_points import reached
from harness.records.files import SUFFIX, read_cell, write_atomically
from harness.records.finished import CHECKPOINTS, PARTS, Finished, digest_of, finished_of
from harness.records.parts import ConversationKey, Part, settled
from harness.records.provenance import measured_with
from harness.records.runs import CELLS
from harness.records.schema import CellRecord
from harness.records.strict_json import at, shown, typed
from harness.runner.cpu_threads import VARIABLE as THREADS
from harness.runner.drift import Drift, drift_of
from harness.runner.plan.run_plan import Resume

ASIDE = ".damaged"

Note = Callable[[str], None]
"""Tells the user something."""


@dataclass
class CellCheckpoint:
    """The parts of one cell, kept on disk as they come."""

    folder: Path
    """Of the run."""
    key: str
    file: Checkpoint
    earlier: Sequence[Part] = ()
    """Outlines of those of earlier sessions: one for each block and session."""
    cell_id: str | None = None
    """Of the record, once it is written."""
    provenances: Sequence[Mapping[str, Any]] = ()
    """Of everything that earlier sessions measured."""
    config: Mapping[str, Any] | None = None
    """That of the record, where there is one."""
    clock_s: float = 0.0
    """What the records' clock showed at the end of the last part."""
    models: Mapping[str, str] = field(default_factory=dict)
    """See `Finished`."""
    threads_asked: str | None = None
    """See `Finished`."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """See `Finished`."""
    drift: Drift | None = None
    """Between earlier sessions and this one."""

    def keep(self, part: Part) -> None:
        """Add a part; on disk when this returns, and not in memory, which a long cell would fill."""
        self.file.append({"part": part.to_json()})
        self.models = part.facts["models"]
        self.clock_s = max(self.clock_s, part.clock_s)

    def run_again(self, parts: Sequence[Part]) -> None:
        """Forget some parts of earlier sessions, for good."""
        for part in parts:
            self.file.append({"forgotten": [part.block.index, part.block.session]})
        self.earlier = [part for part in self.earlier if part not in parts]

    def forget_block(self, block: int, session: str) -> None:
        """Forget what a session has kept of a block, for good."""
        if self.file.num_bytes:
            self.file.append({"forgotten": [block, session]})

    def forget(self) -> None:
        """Forget all that was kept of the cell, of this session too."""
        self.file.path.unlink(missing_ok=True)
        self.earlier = ()

    def anew(self, session: str, drift: Drift) -> CellCheckpoint:
        """An empty one of the same cell for a session that cannot go on with the parts; they go when it is finished."""
        return CellCheckpoint(
            self.folder, self.key, Checkpoint(self.folder / CHECKPOINTS / f"{self.key}-{session}{PARTS}"), drift=drift
        )

    def played(self, block: int) -> set[ConversationKey]:
        """The conversations of a block that earlier sessions have played."""
        return {key for part in self.earlier if part.block.index == block for key in part.played}

    def parts(self) -> list[Part]:
        """One part for each block and session, in the order of the blocks, read back.

        Raises:
            ValueError: the file is not as it was written.
        """
        parts, _, file, _ = checkpoint_content(self.file.path)
        if file != self.file:
            raise ValueError(f"{file.path}: expected {self.file.num_bytes} bytes of this run, found {file.num_bytes}")
        return settled(parts)

    def finish(self, record: CellRecord, files: Sequence[Path]) -> None:
        """The cell's files are written: remember their digests instead of the parts."""
        reached("the record is written")
        content = {
            "cell_id": record.cell_id,
            "config": record.config,
            "files": {path.name: digest_of(path) for path in files},
            "provenances": list(record.provenances),
            "models": dict(self.models),
            "sources": dict(self.sources),
            "threads_asked": os.environ.get(THREADS) if self.cell_id is None else self.threads_asked,
        }
        write_atomically(self.file.path, whole_file({"finished": content}))
        reached("the checkpoint is closed")
        self.cell_id, self.config = record.cell_id, record.config
        for path in _checkpoints(self.folder, self.key):
            if path != self.file.path:
                path.unlink(missing_ok=True)


def find_checkpoint(
    folder: Path, key: str, session: str, here: Mapping[str, Any], options: Resume, note: Note
) -> CellCheckpoint:
    """What earlier sessions left of a cell that may be used here; empty where there is nothing.

    Args:
        folder: of the run.
        key: of the cell.
        session: names this process; a cell that is started anew gets a file with its name.
        here: provenance of this process.
        options: see there.
        note: told what is damaged, torn or was measured with something else.
    """
    found = []
    for path in _checkpoints(folder, key):
        own = options.own_sessions and path.name.startswith(f"{key}-{options.own_sessions}")
        if options.is_fresh and not own:
            path.unlink()
        elif (checkpoint := _read(folder, key, path, note)) is not None and not (
            options.retries_failed and _starts_anew(checkpoint, options.own_sessions, note)
        ):
            found.append(checkpoint)
    drifts = [drift_of(checkpoint.provenances, measured_with(here)) for checkpoint in found]
    same = [checkpoint for checkpoint, drift in zip(found, drifts, strict=True) if not drift]
    if same:
        return same[-1]
    drift = Drift(drifts[-1], options.accepts_drift) if found else None
    if found and options.accepts_drift:
        return replace(found[-1], drift=drift)
    return CellCheckpoint(folder, key, Checkpoint(folder / CHECKPOINTS / f"{key}-{session}{PARTS}"), drift=drift)


def _checkpoints(folder: Path, key: str) -> list[Path]:
    """Those of a cell, the one written last at the end."""
    return sorted((folder / CHECKPOINTS).glob(f"{key}-*{PARTS}"), key=lambda path: path.stat().st_mtime)


def _read(folder: Path, key: str, path: Path, note: Note) -> CellCheckpoint | None:
    """A checkpoint with its parts, or the record that came of them; None where it was set aside or holds nothing."""
    try:
        parts, finished, file, num_torn = checkpoint_content(path)
    except ValueError as error:
        note(f"{path}: {error}; set aside as {_set_aside(path).name}, and the cell is started anew")
        return None
    if num_torn:
        note(f"{path}: the last {num_torn} bytes are of a part that was not written whole; they are cut off")
    if finished is None:
        if not parts:
            return None
        return CellCheckpoint(
            folder,
            key,
            file,
            earlier=[part.outline for part in settled(parts)],
            provenances=[part.provenance for part in parts],
            clock_s=max(part.clock_s for part in parts),
            models=parts[-1].facts["models"],
        )
    for name, digest in finished.files.items():
        record = folder / CELLS / Path(name).name
        found = None
        # a folder or a file that may not be read is not what was written either
        with suppress(OSError):
            found = digest_of(record)
        if found == digest:
            continue
        if not (record.exists() or record.is_symlink()):
            note(f"{record}: expected the finished cell, found nothing; the cell is run again")
        elif found is not None and _is_of_another(found, folder, key, path):
            note(f"{record}: measured twice, as in folders that were put together; {path.name} is dropped")
        else:
            note(
                f"{record}: not as the run wrote it; set aside as {_set_aside(record).name}, and the cell is run again"
            )
        path.unlink()
        return None
    return CellCheckpoint(
        folder,
        key,
        file,
        cell_id=finished.cell_id,
        provenances=finished.provenances,
        config=finished.config,
        models=finished.models,
        threads_asked=finished.threads_asked,
    )


def _is_of_another(digest: str, folder: Path, key: str, path: Path) -> bool:
    """Whether another checkpoint of the cell stands for a file with that digest."""
    for other in _checkpoints(folder, key):
        with suppress(ValueError):
            finished = None if other == path else finished_of(other)
            if finished is not None and digest in finished.files.values():
                return True
    return False


def _starts_anew(checkpoint: CellCheckpoint, own_sessions: str, note: Note) -> bool:
    """Have what earlier runs did with failed requests run again: a block, or the whole of a finished cell."""
    if checkpoint.cell_id is None:
        failed = [part for part in checkpoint.earlier if any(item.request is not None for item in part.failures)]
        others = [part for part in failed if not own_sessions or not part.block.session.startswith(own_sessions)]
        if others:
            note(f"requests had failed in {len(others)} blocks, which are run again")
            checkpoint.run_again(others)
        return False
    record = read_cell(checkpoint.folder / CELLS / f"{checkpoint.cell_id}{SUFFIX}")
    is_own = own_sessions and any(session.startswith(own_sessions) for session in record.sessions)
    if is_own or not record.num_failed_requests:
        return False
    note("it was finished, and requests had failed; it is run again")
    checkpoint.file.path.unlink()
    return True


def checkpoint_content(path: Path) -> tuple[list[Part], Finished | None, Checkpoint, int]:
    """The parts of a checkpoint, or what stands for them; the file; and how many bytes at its end are torn.

    Raises:
        ValueError: it is damaged.
    """
    frames, file, num_torn = read_checkpoint(path)
    parts, forgotten, finished = list[Part](), list[tuple[int, str]](), None
    for number, frame in enumerate(frames, start=1):
        name, content = at(f"frame {number}", _entry, frame)
        if name == "part":
            parts.append(at(f"frame {number}", Part.from_json, content))
        elif name == "forgotten":
            forgotten.append(at(f"frame {number}", typed, tuple[int, str], content))
        else:
            finished = at(f"frame {number}", typed, Finished, content)
    kept = [part for part in parts if (part.block.index, part.block.session) not in forgotten]
    return kept, finished, file, num_torn


def _entry(frame: Any) -> tuple[str, Any]:
    """The name and the content of a frame."""
    if not isinstance(frame, dict) or len(frame) != 1 or not {*frame} <= {"part", "forgotten", "finished"}:
        raise ValueError(f"expected part, forgotten or finished, found {shown(frame)}")
    (entry,) = frame.items()
    return entry


def _set_aside(path: Path) -> Path:
    """Rename a damaged file so that nothing reads it; one of that name gives way."""
    return path.replace(path.with_name(path.name + ASIDE))
