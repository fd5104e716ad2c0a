"""Weights stored in two thirds of their bytes, without loss: model.safetensors.packed in place of model.safetensors.

A number of bfloat16 is a sign, 8 bits of exponent and 7 of fraction. The exponents of a matrix are few values, which a
Huffman code holds in under 3 bits; signs and fractions are as good as random. So every 16-bit word of the file is
turned by one bit, which makes one byte of the exponent and one of the rest, and the bytes of each kind are stored
together. Files of other numbers come back the same too, but are hardly smaller.

| bytes | content |
|---|---|
| a line of JSON | `format`, and of model.safetensors `num_bytes` and `sha256` |
| a zlib stream | exponent bytes of all words (little-endian), their other bytes, the last byte of an odd number |

Whatever reads a checkpoint folder reads what `unpacked` returns for it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import zlib
from pathlib import Path
from typing import NamedTuple

from harness.models.checkpoint import SINGLE, CheckpointError
from harness.models.kept_folders import cache_folder, content_of, kept, state_of, told_if_unreadable

PACKED = f"{SINGLE}.packed"
FORMAT = "rejection-lab packed weights 1"
_LONGEST_LINE = 1000


class _Stated(NamedTuple):
    """What a packed file says of the file that it was made of."""

    num_bytes: int
    sha256: str


def pack(source: Path, to: Path) -> None:
    """Write a file packed; the same bytes for the same file and version of zlib.

    Args:
        source: normally a model.safetensors of bfloat16.
        to: the packed file, which appears whole or not at all.

    Raises:
        UnwritableError: it cannot be written.
    """
    import numpy as np

    from harness.records.files import write_atomically

    content = source.read_bytes()
    words = np.frombuffer(content, "<u2", len(content) // 2)
    planes = ((words << 1) | (words >> 15)).astype("<u2").view(np.uint8).reshape(-1, 2)
    stated = {"format": FORMAT, "num_bytes": len(content), "sha256": _sha256(content)}
    # what is as good as random has no repeats to look for
    stream = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL + 1, zlib.Z_HUFFMAN_ONLY)
    parts = [planes[:, 1].tobytes(), planes[:, 0].tobytes(), content[2 * len(words) :]]
    packed = [json.dumps(stated).encode() + b"\n", *map(stream.compress, parts), stream.flush()]
    write_atomically(to, b"".join(packed))


def unpack(packed: Path) -> bytes:
    """The file that a packed one was made of, byte for byte.

    Raises:
        CheckpointError: it is damaged, or something else.
    """
    import numpy as np

    stated = _stated(packed)
    try:
        planes = zlib.decompress(content_of(packed).partition(b"\n")[2])
    except zlib.error as error:
        raise CheckpointError(_damaged(packed, str(error))) from error
    num_words = stated.num_bytes // 2
    found = b""
    if len(planes) == stated.num_bytes:
        words = np.empty((num_words, 2), np.uint8)
        words[:, 1] = np.frombuffer(planes, np.uint8, num_words)
        words[:, 0] = np.frombuffer(planes, np.uint8, num_words, num_words)
        turned = words.view("<u2").ravel()
        found = ((turned >> 1) | (turned << 15)).astype("<u2").tobytes() + planes[2 * num_words :]
    if _sha256(found) != stated.sha256:
        raise CheckpointError(_damaged(packed, f"{len(planes)} bytes of another SHA-256"))
    return found


def unpacked(folder: Path) -> Path:
    """The folder of a checkpoint with its weights as every reader knows them.

    Args:
        folder: of a checkpoint, packed or not.

    Returns:
        The folder itself, unless its weights are packed: then a copy of its name with all its files in the user's
        cache, in a folder named after what is in them, written when it is first asked for, and again where it holds
        something else.

    Raises:
        CheckpointError: the packed file is damaged, cannot be read, or lies beside unpacked weights; or there is no
            room for them.
    """
    packed = folder / PACKED
    if not packed.is_file():
        return folder
    if (folder / SINGLE).is_file():
        raise CheckpointError(f"{folder}: expected {SINGLE} or {PACKED}, found both; take one of them away")
    stated = _stated(packed)

    def is_whole(found: Path) -> bool:
        return all(_holds(found / path.name, _sha256(content_of(path))) for path in _others(folder)) and _holds(
            found / SINGLE, stated.sha256
        )

    def write(found: Path) -> None:
        for path in _others(folder):
            (found / path.name).write_bytes(content_of(path))
        (found / SINGLE).write_bytes(unpack(packed))

    return kept(place_of(folder), write, is_whole)


def place_of(folder: Path) -> Path:
    """Where `unpacked` puts a folder of packed weights, there or not.

    Raises:
        CheckpointError: the packed file does not begin as one.
    """
    digest = hashlib.sha256(_stated(folder / PACKED).sha256.encode())
    for path in _others(folder):
        content = content_of(path)
        digest.update(f"\n{path.name} {len(content)}\n".encode() + content)
    return cache_folder() / "unpacked" / digest.hexdigest()[:16] / folder.name


def pack_folder(source: Path, to: Path) -> None:
    """Copy the files of a checkpoint folder, its model.safetensors packed."""
    to.mkdir(parents=True, exist_ok=True)
    pack(source / SINGLE, to / PACKED)
    for path in _others(source):
        if path.name != SINGLE:
            shutil.copyfile(path, to / path.name)


def _others(folder: Path) -> list[Path]:
    """The files of a folder but for the packed one."""
    return sorted(path for path in folder.iterdir() if path.is_file() and path.name != PACKED)


_KNOWN: dict[Path, tuple[object, str]] = {}
"""State and SHA-256 of the files of the cache that this process has read."""


def _holds(file: Path, sha256: str) -> bool:
    """Whether a file of the cache has this SHA-256; it is read again once it has changed."""
    try:
        state = state_of(file)
        if _KNOWN.get(file, (None,))[0] != state:
            _KNOWN[file] = state, _sha256(file.read_bytes())
    except OSError:
        return False
    return _KNOWN[file][1] == sha256


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _stated(packed: Path) -> _Stated:
    with told_if_unreadable(packed), packed.open("rb") as stream:
        line = stream.readline(_LONGEST_LINE)
    try:
        stated = json.loads(line)
        if stated["format"] != FORMAT:
            raise ValueError(f"format {stated['format']!r}")
        return _Stated(int(stated["num_bytes"]), str(stated["sha256"]))
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(_damaged(packed, f"another first line ({error})")) from error


def _damaged(packed: Path, found: str) -> str:
    is_ours = packed.is_relative_to(Path(__file__).parent)
    source = "git checkout, or install the package again" if is_ours else "from where the folder came from"
    return (
        f"{packed}: expected packed weights ({FORMAT}) that are whole, found {found}: {packed.stat().st_size} bytes; "
        f"fetch the file again ({source})"
    )
