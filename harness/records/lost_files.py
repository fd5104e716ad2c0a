"""Which files of a run's finished cells are missing, or not as the run wrote them; nothing is changed.

This module knows where records lie; it does not know what they mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.records.files import SUFFIX, read_cell
from harness.records.finished import WrittenFiles
from harness.records.runs import CELLS, MANIFEST, read_manifest


@dataclass(frozen=True)
class LostFiles:
    """Paths are relative to the run's folder."""

    missing: tuple[Path, ...] = ()
    damaged: tuple[Path, ...] = ()
    leaves_records: bool = True
    """Whether a record is there, damaged or not."""
    num_whole: int | None = None
    """Cells that nothing is lost of; None where nothing was looked for."""


def lost_files(folder: Path, num_finished: int, reads: bool = True) -> LostFiles:
    """Compare the files of a run that has ended with its manifest and with what it wrote.

    A record that the run took away itself, to run a failed cell again, is not lost.

    Args:
        folder: of the run.
        num_finished: cells of which it has written a record; with any there is a manifest.
        reads: whether files are read, which takes as long as they are large; else only missing ones are found.
    """
    cells, missing, damaged = folder / CELLS, list[Path](), list[Path]()
    there = [path.name.removesuffix(SUFFIX) for path in sorted(cells.glob(f"*{SUFFIX}"))]
    listed = there
    try:
        listed = read_manifest(folder).get("cells", there)
    except ValueError:
        damaged.append(folder / MANIFEST)
    if num_finished and not (folder / MANIFEST).exists():
        missing.append(folder / MANIFEST)
    written, lost = WrittenFiles(cells), set[str]()
    expected = [each for each in dict.fromkeys(listed) if each in there or written.expects(each)]
    for cell_id in expected:
        for path in (cells / name for name in written.names(cell_id)):
            found = missing if not path.is_file() else damaged if reads and _is_damaged(path, written) else None
            if found is not None:
                found.append(path)
                lost.add(cell_id)
    return LostFiles(
        missing=tuple(path.relative_to(folder) for path in missing),
        damaged=tuple(path.relative_to(folder) for path in damaged),
        leaves_records=not num_finished or not {*listed}.isdisjoint(there),
        num_whole=len(expected) - len(lost),
    )


def _is_damaged(path: Path, written: WrittenFiles) -> bool:
    """Whether a file is not as it was written; a record without a digest is read."""
    try:
        written.check(path)
        if not written.knows(path):
            read_cell(path)
    except ValueError:
        return True
    return False
