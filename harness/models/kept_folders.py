"""Checkpoint folders that are written once and kept in the user's cache: GGUF files converted, packed weights unpacked.

Several processes may want one at once, and any may be killed: a folder appears whole or not at all. Until then it has a
hidden name and a lock (flock), which ends with the process: what a killed one left is taken away by the next that
writes. Where a file system has no such locks it is left there.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

from harness.models.checkpoint import CheckpointError

VARIABLE = "REJECTION_LAB_CACHE"
_TRIES = 3
"""Folders that are taken away before one is written in their place."""


def cache_folder() -> Path:
    """Where they are kept: REJECTION_LAB_CACHE, else a folder in the user's cache.

    Raises:
        CheckpointError: the user has none.
    """
    user = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(os.environ.get(VARIABLE) or f"{user}/rejection_lab").expanduser()
    except RuntimeError as error:
        raise CheckpointError(
            f"expected a home folder to keep unpacked models in, found none; name a folder in {VARIABLE}"
        ) from error


def kept(folder: Path, write: Callable[[Path], None], is_whole: Callable[[Path], bool] = Path.is_dir) -> Path:
    """A folder of the cache, written if it is not there.

    Args:
        folder: its place.
        write: fills an empty folder; what it cannot read it tells as a CheckpointError (`told_if_unreadable`).
        is_whole: whether what lies at the place is what would be written; else it is taken away.

    Raises:
        CheckpointError: it cannot be written there.
    """
    if is_whole(folder):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _take_away_abandoned(folder.parent)
        with _unfinished(folder) as unfinished:
            write(unfinished)
            unfinished.chmod(0o755)
            _put(unfinished, folder, is_whole)
    except OSError as error:
        raise CheckpointError(
            f"{folder}: expected to write this folder once, found: {error.strerror or error}; make room or give "
            f"yourself the right, or name another folder in {VARIABLE}"
        ) from error
    return folder


@contextmanager
def told_if_unreadable(file: Path) -> Iterator[None]:
    """Turn what the system says of a file that is read inside into a CheckpointError that names it."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{file}: expected a file that can be read, found: {error.strerror or error}; give yourself the right to "
            "read it, or fetch it again"
        ) from error


def content_of(file: Path) -> bytes:
    """What is in a file that a folder is made of.

    Raises:
        CheckpointError: it cannot be read.
    """
    with told_if_unreadable(file):
        return file.read_bytes()


def state_of(file: Path) -> tuple[int, ...]:
    """What is another one for a file that was written to or replaced, whatever its times were set to.

    Raises:
        OSError: the system does not tell.
    """
    stat = file.stat()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


@contextmanager
def _unfinished(folder: Path) -> Iterator[Path]:
    """A locked folder beside another one, taken away at the end if it is still there."""
    while True:
        unfinished = Path(mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        place = os.open(unfinished, os.O_RDONLY)
        try:
            _lock(place, fcntl.LOCK_EX)
            # who cleans up may have taken it before it was locked
            if unfinished.exists():
                yield unfinished
                return
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
            os.close(place)


def _take_away_abandoned(cache: Path) -> None:
    """Take away folders whose writers were killed."""
    for unfinished in cache.glob(".*-*"):
        try:
            place = os.open(unfinished, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            continue
        try:
            if _lock(place, fcntl.LOCK_EX | fcntl.LOCK_NB):
                shutil.rmtree(unfinished, ignore_errors=True)
        finally:
            os.close(place)


def _lock(place: int, how: int) -> bool:
    """Whether a folder is locked now; not where another process has it, or where there are no such locks."""
    try:
        fcntl.flock(place, how)
    except OSError:
        return False
    return True


def _put(unfinished: Path, folder: Path, is_whole: Callable[[Path], bool]) -> None:
    """Move a folder to its place, unless another process has put the same one there meanwhile.

    One process at a time looks at what lies there and takes it away, so that none takes away what another has put.
    """
    place = os.open(folder.parent, os.O_RDONLY)
    try:
        _lock(place, fcntl.LOCK_EX)
        for tries_left in reversed(range(_TRIES)):
            try:
                unfinished.rename(folder)
                return
            except OSError:
                if is_whole(folder):
                    return
                if not tries_left or not folder.exists():
                    raise
                shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(place)
