"""What identifies the weights in a folder, cheaply: names, sizes, and both ends of every file that decides results."""

from __future__ import annotations

import hashlib
from pathlib import Path

END_BYTES = 1 << 20
"""Read from the start and from the end of each file; the start of a safetensors file holds its whole header."""

TEXT_SUFFIXES = (".json", ".jinja")
"""Of files without weights: sizes, tokenizer, chat template."""
SUFFIXES = (".safetensors", *TEXT_SUFFIXES)


def fingerprint(folder: Path, suffixes: tuple[str, ...] = SUFFIXES) -> str:
    """The first 16 hex digits of a SHA-256 over the model files of a folder, or over those with some suffixes.

    Files up to 2 MiB are read whole; of larger ones the size, the first and the last MiB, so that naming a checkpoint
    of many gigabytes takes milliseconds. A change in the middle of a large file that keeps its size goes unseen.
    """
    digest = hashlib.sha256()
    for path in sorted(item for item in folder.iterdir() if item.suffix in suffixes):
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}\n".encode())
        with path.open("rb") as stream:
            digest.update(stream.read(END_BYTES))
            if size > END_BYTES:
                stream.seek(max(END_BYTES, size - END_BYTES))
                digest.update(stream.read(END_BYTES))
    return digest.hexdigest()[:16]
