"""A checkpoint: an append-only file of frames, each with a digest over itself and all before it.

    frame: length [8 bytes, big-endian] | CRC-32 of the length [4] | payload: JSON, zlib | SHA-256 [32]

The digest of a frame covers the digest of the frame before, so that none can be edited, removed or put elsewhere. A
frame is on disk (fsync) before `append` returns. A process that dies in `append` leaves part of a frame at the end:
`read_checkpoint` reads the frames before it, and the next `append` writes over it. Everything else is damage.
One process appends at a time: `append` refuses a file that has changed since this process read or wrote it.
This module does not know what a frame means.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.records.fault_points import reached
from harness.records.files import writing

MAGIC = b"rejection-lab checkpoint 1\n"
_LENGTH, _CRC, _DIGEST = 8, 4, 32
_HEADER = _LENGTH + _CRC


class DamagedCheckpointError(ValueError):
    """A checkpoint that was edited, or is none."""


@dataclass
class Checkpoint:
    """A checkpoint that frames can be appended to."""

    path: Path
    num_bytes: int = 0
    """Of its whole frames; the file is made by the first `append`."""
    digest: bytes = hashlib.sha256(MAGIC).digest()
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
        frame, digest = _frame(content, self.digest)
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
                _write(stream.fileno(), data[: len(data) // 2])
                reached("half of a frame is written")
                _write(stream.fileno(), data[len(data) // 2 :])
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
        DamagedCheckpointError: a frame is not as it was written; names the byte.
        OSError: the file cannot be read.
    """
    data = path.read_bytes()
    if data[: len(MAGIC)] != MAGIC[: len(data)]:
        raise DamagedCheckpointError(f"expected a checkpoint that begins with {MAGIC!r}, found {data[: len(MAGIC)]!r}")
    contents: list[Any] = []
    place, digest = len(MAGIC), Checkpoint(path).digest
    while (end := _end_of_frame(data, place)) is not None:
        payload, found = data[place + _HEADER : end - _DIGEST], data[end - _DIGEST : end]
        expected = hashlib.sha256(digest + data[place : end - _DIGEST]).digest()
        if found != expected:
            if not found.strip(b"\0"):
                break
            raise DamagedCheckpointError(f"expected frame {len(contents) + 1} (at byte {place}) as it was written")
        contents.append(json.loads(zlib.decompress(payload)))
        place, digest = end, expected
    if not contents:
        return [], Checkpoint(path, num_torn=len(data)), len(data)
    num_torn = len(data) - place
    return contents, Checkpoint(path, place, digest, num_torn), num_torn


def _end_of_frame(data: bytes, place: int) -> int | None:
    """Where the frame that begins at a place ends; None if it was not written whole."""
    header = data[place : place + _HEADER]
    # what was allocated and never written reads as zeros
    if len(header) < _HEADER or not header.strip(b"\0"):
        return None
    if zlib.crc32(header[:_LENGTH]) != int.from_bytes(header[_LENGTH:], "big"):
        raise DamagedCheckpointError(f"expected the length of a frame at byte {place}, found {header.hex()}")
    end = place + _HEADER + int.from_bytes(header[:_LENGTH], "big") + _DIGEST
    return end if end <= len(data) else None


def whole_file(content: Any) -> bytes:
    """A checkpoint of one frame."""
    frame, _ = _frame(content, Checkpoint(Path()).digest)
    return MAGIC + frame


def _frame(content: Any, digest_before: bytes) -> tuple[bytes, bytes]:
    """A frame and its digest."""
    payload = zlib.compress(json.dumps(content, allow_nan=False).encode(), 1)
    length = len(payload).to_bytes(_LENGTH, "big")
    frame = length + zlib.crc32(length).to_bytes(_CRC, "big") + payload
    digest = hashlib.sha256(digest_before + frame).digest()
    return frame + digest, digest


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


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
