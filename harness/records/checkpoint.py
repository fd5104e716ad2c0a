"""A checkpoint: an append-only file of frames (harness.plugins.recording.frames).

A frame is on disk (fsync) before `append` returns. A process that dies in `append` leaves part of a frame at the end:
`read_checkpoint` reads the frames before it, and the next `append` writes over it. Everything else is damage.
One process appends at a time: `append` refuses a file that has changed since this process read or wrote it.
This module does not know what a frame means.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.plugins.recording.frames import first_digest, framed, read_frames, write_whole
from harness.records.fault_points import reached
from harness.records.files import writing

MAGIC = b"rejection-lab checkpoint 1\n"


@dataclass
class Checkpoint:
    """A checkpoint that frames can be appended to."""

    path: Path
    num_bytes: int = 0
    """Of its whole frames; the file is made by the first `append`."""
    digest: bytes = first_digest(MAGIC)
    """Of the last whole frame."""
    num_torn: int = field(default=0, compare=False)
    """Bytes behind the whole frames that the next frame is written over."""

    def append(self, content: Any) -> None:
        """Write a frame; on disk when this returns.

        Args:
            content: plain JSON values.

        Raises:
            UnwritableError: the frame could not be written, or the file is not as this process left it; what was
                written before it stays readable.
        """
        frame, digest = framed(content, self.digest)
        data = frame if self.num_bytes else MAGIC + frame
        with writing(self.path):
            is_new = not self.path.exists()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644), "wb", buffering=0) as stream:
                found, expected = os.fstat(stream.fileno()).st_size, self.num_bytes + self.num_torn
                if found != expected:
                    raise OSError(f"{found} bytes instead of {expected}: another process has changed it meanwhile")
                stream.truncate(self.num_bytes)
                stream.seek(self.num_bytes)
                write_whole(stream.fileno(), data[: len(data) // 2])
                reached("half of a frame is written")
                write_whole(stream.fileno(), data[len(data) // 2 :])
                reached("a frame is written")
                os.fsync(stream.fileno())
            if is_new:
                sync_folder(self.path.parent)
        self.num_bytes, self.num_torn = self.num_bytes + len(data), 0
        self.digest = digest
        reached("a frame is on disk")


def read_checkpoint(path: Path) -> tuple[list[Any], Checkpoint, int]:
    """Read the frames of a checkpoint.

    Returns:
        the contents in order; the checkpoint, ready for the next frame; and how many bytes of a frame that was not
        written whole follow the last one.

    Raises:
        DamagedFramesError: a frame is not as it was written; names the byte.
        OSError: the file cannot be read.
    """
    data = path.read_bytes()
    contents, place, digest = read_frames(data, MAGIC)
    if not contents:
        return [], Checkpoint(path, num_torn=len(data)), len(data)
    num_torn = len(data) - place
    return contents, Checkpoint(path, place, digest, num_torn), num_torn


def whole_file(content: Any) -> bytes:
    """A checkpoint of one frame."""
    frame, _ = framed(content, first_digest(MAGIC))
    return MAGIC + frame


def sync_folder(folder: Path) -> None:
    """Put the names of a folder's files on disk, where the system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        # some network file systems refuse it for folders, and keep names without it
        pass
    finally:
        os.close(descriptor)
