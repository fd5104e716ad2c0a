"""What stands in the checkpoint of a finished cell: its files and their digests, by which an edited file is found.

Checkpoints lie in checkpoints/ beside the cells/ of a run. This module does not know what a record means.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.plugins.recording.frames import is_one_frame
from harness.records.checkpoint import MAGIC, read_checkpoint
from harness.records.files import BRING_BACK, SUFFIX
from harness.records.strict_json import shown, typed

CHECKPOINTS = "checkpoints"
PARTS = ".parts"
"""How the name of a checkpoint ends."""


@dataclass(frozen=True)
class Finished:
    """What stands for the parts once the record is written."""

    cell_id: str
    config: Mapping[str, Any]
    files: Mapping[str, str]
    """Names and digests."""
    provenances: tuple[Mapping[str, Any], ...]
    models: Mapping[str, str] = field(default_factory=dict)
    """Digest of the weights by role; empty where an earlier version has not kept it."""
    threads_asked: str | None = None
    """OMP_NUM_THREADS of the process that wrote the record."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Digest by role of what weights were read from or drawn after; empty where none are random, or it is not known."""

    def __post_init__(self) -> None:
        """Check that the record is one of the files."""
        if f"{self.cell_id}{SUFFIX}" not in self.files:
            raise ValueError(f"expected the record of cell {shown(self.cell_id)} among its files, found none")


def digest_of(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class WrittenFiles:
    """The digests of the files in a cells folder, as the run wrote them."""

    def __init__(self, folder: Path) -> None:
        """
        Args:
            folder: of records; if no checkpoints lie beside it (an earlier version, a copy), no digest is known.
        """
        self._digests: dict[str, list[str]] = {}
        self._names: dict[str, dict[str, None]] = {}
        for path in sorted((folder.absolute().parent / CHECKPOINTS).glob(f"*{PARTS}")):
            # `run` names a damaged one; one that disappears belongs to a run that goes on
            with suppress(ValueError, OSError):
                finished = finished_of(path)
                if finished is None:
                    continue
                for stated, digest in finished.files.items():
                    # of this folder, whatever a file from elsewhere says
                    name = Path(stated).name
                    self._digests.setdefault(name, []).append(digest)
                    self._names.setdefault(finished.cell_id, {})[name] = None

    def expects(self, cell_id: str) -> bool:
        """Whether a record of a cell should be there: the run has finished it, or left no word of any."""
        return cell_id in self._names or not self._names

    def names(self, cell_id: str) -> tuple[str, ...]:
        """The files of a cell; only its record where no digest is known."""
        return tuple(self._names.get(cell_id, {f"{cell_id}{SUFFIX}": None}))

    def knows(self, path: Path) -> bool:
        """Whether the digest of a file is known."""
        return path.name in self._digests

    def check(self, path: Path) -> None:
        """Refuse a file that was changed, or cannot be read; raises ValueError with its path."""
        try:
            is_changed = self.knows(path) and digest_of(path) not in self._digests[path.name]
        except OSError as error:
            raise ValueError(f"{path}: expected a file that can be read, found {error.strerror}") from error
        if is_changed:
            raise ValueError(
                f"{path}: expected the file as the run wrote it, found another (edited or damaged); {BRING_BACK}"
            )


def finished_of(path: Path) -> Finished | None:
    """What a checkpoint has in the place of parts; None where it has parts, which are not read.

    Raises:
        ValueError: it is damaged.
    """
    with path.open("rb") as stream:
        if not is_one_frame(stream, MAGIC):
            return None
    ((content,), _, _) = read_checkpoint(path)
    if not isinstance(content, dict) or [*content] != ["finished"]:
        return None
    finished: Finished = typed(Finished, content["finished"])
    return finished
