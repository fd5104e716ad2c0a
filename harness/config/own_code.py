"""Where an error came out of code of the user's own, in words for a message; knows no setting."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from traceback import FrameSummary, extract_tb

ROOT = Path(__file__).resolve().parents[2]
"""The folder of this project's packages."""
_folders = set[Path]()


def note_own_file(file: str | None) -> None:
    """Take what lies in the folder of a file for the user's own, from here on; None for a module without a file."""
    if file is not None and not _is_ours(Path(file)):
        _folders.add(Path(file).parent)


def own_place(error: BaseException) -> str:
    """` (my_rules.py, line 7, in odds)`, the innermost place of the user's own that an error came through.

    Empty where it came through none. Folders above the package are left out, so that a record names none of a machine.
    """
    frames = extract_tb(error.__traceback__)
    return _told([frame for frame in frames if Path(frame.filename).parent in _folders])


def import_place(error: BaseException) -> str:
    """The same of an error that ended the import of a module, in its own code or in what it called."""
    frames = extract_tb(error.__traceback__)
    real = [frame for frame in frames if not frame.filename.startswith("<") and not _is_ours(Path(frame.filename))]
    behind = [frame for frame in real if Path(frame.filename).parent.name != "importlib"]
    return _told([frame for frame in behind if Path(frame.filename).parent == Path(behind[0].filename).parent])


def place_of(path: Path) -> str:
    """A source file without the folders above its package."""
    folders = [folder for folder in (str(ROOT), *sys.path) if folder and path.is_relative_to(folder)]
    return path.relative_to(max(folders, key=len)).as_posix() if folders else path.name


def _is_ours(path: Path) -> bool:
    """Whether a source file is of this project."""
    return any(path.is_relative_to(ROOT / name) for name in ("kernels", "harness", "experiments"))


def _told(frames: Iterable[FrameSummary]) -> str:
    frame = next(reversed([*frames]), None)
    if frame is None:
        return ""
    where = "" if frame.name == "<module>" else f", in {frame.name}"
    return f" ({place_of(Path(frame.filename))}, line {frame.lineno}{where})"
