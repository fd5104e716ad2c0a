"""An append-only file of frames, each with a digest over itself and all before it.

    magic | frame, frame, ...
    frame: length [8 bytes, big-endian] | CRC-32 of the length [4] | payload: JSON, zlib | SHA-256 [32]

The digest of a frame covers the digest of the frame before, so that none can be edited, removed or put elsewhere. A
process that dies while it writes leaves part of a frame at the end; everything else that is wrong is damage.
This module does not know what a frame means.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

_LENGTH, _CRC, _DIGEST = 8, 4, 32
_HEADER = _LENGTH + _CRC


class DamagedFramesError(ValueError):
    """The file was edited, or does not consist of frames."""


class WholeFrames(NamedTuple):
    """The frames of a file up to its end, or to one that was not written whole."""

    contents: list[Any]
    num_bytes: int
    """Of the magic and the whole frames."""
    digest: bytes
    """Of the last whole frame."""


def first_digest(magic: bytes) -> bytes:
    """The digest that the first frame covers in the place of a frame before."""
    return hashlib.sha256(magic).digest()


def framed(content: Any, digest_before: bytes) -> tuple[bytes, bytes]:
    """A frame and its digest.

    Args:
        content: plain JSON values.
        digest_before: of the frame before.
    """
    payload = zlib.compress(json.dumps(content, allow_nan=False).encode(), 1)
    length = len(payload).to_bytes(_LENGTH, "big")
    frame = length + zlib.crc32(length).to_bytes(_CRC, "big") + payload
    digest = hashlib.sha256(digest_before + frame).digest()
    return frame + digest, digest


def read_frames(data: bytes, magic: bytes) -> WholeFrames:
    """Read the frames of a file, up to one that was not written whole.

    Raises:
        DamagedFramesError: a frame is not as it was written; names the byte.
    """
    if data[: len(magic)] != magic[: len(data)]:
        raise DamagedFramesError(f"expected a file that begins with {magic!r}, found {data[: len(magic)]!r}")
    contents: list[Any] = []
    place, digest = len(magic), first_digest(magic)
    while (end := _end_of_frame(data, place)) is not None:
        payload, found = data[place + _HEADER : end - _DIGEST], data[end - _DIGEST : end]
        expected = hashlib.sha256(digest + data[place : end - _DIGEST]).digest()
        if found != expected:
            if not found.strip(b"\0"):
                break
            raise DamagedFramesError(f"expected frame {len(contents) + 1} (at byte {place}) as it was written")
        contents.append(json.loads(zlib.decompress(payload)))
        place, digest = end, expected
    return WholeFrames(contents, place, digest)


def is_one_frame(stream: BinaryIO, magic: bytes) -> bool:
    """Whether an open file holds one whole frame and nothing else, by its first bytes and its size.

    Raises:
        DamagedFramesError: see `read_frames`.
    """
    start, num_bytes = stream.read(len(magic) + _HEADER), stream.seek(0, os.SEEK_END)
    return start.startswith(magic) and _end_by_header(start, len(magic)) == num_bytes


def _end_of_frame(data: bytes, place: int) -> int | None:
    """Where the frame that begins at a place ends; None if it was not written whole."""
    end = _end_by_header(data, place)
    return end if end is not None and end <= len(data) else None


def _end_by_header(data: bytes, place: int) -> int | None:
    """Where a frame ends by the length at its begin; None if that was not written whole."""
    header = data[place : place + _HEADER]
    # what was allocated and never written reads as zeros
    if len(header) < _HEADER or not header.strip(b"\0"):
        return None
    if zlib.crc32(header[:_LENGTH]) != int.from_bytes(header[_LENGTH:], "big"):
        raise DamagedFramesError(f"expected the length of a frame at byte {place}, found {header.hex()}")
    return place + _HEADER + int.from_bytes(header[:_LENGTH], "big") + _DIGEST


def write_whole(descriptor: int, data: bytes) -> None:
    """Write all of it to a file."""
    while data:
        data = data[os.write(descriptor, data) :]


@dataclass
class FrameFile:
    """A new file that one process appends frames to."""

    path: Path
    magic: bytes
    _digest: bytes = field(default=b"", repr=False)
    _num_bytes: int = 0

    def __post_init__(self) -> None:
        """Create the file.

        Raises:
            FileExistsError: it exists.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("xb") as stream:
            stream.write(self.magic)
        self._digest, self._num_bytes = first_digest(self.magic), len(self.magic)

    def append(self, content: Any) -> None:
        """Write a frame of plain JSON values; on disk when this returns.

        Raises:
            OSError: it could not be written; frames before it stay readable, and further ones can be appended.
        """
        data, digest = framed(content, self._digest)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            # half of a frame may be there, from a full disk
            os.ftruncate(descriptor, self._num_bytes)
            write_whole(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self._digest, self._num_bytes = digest, self._num_bytes + len(data)
