"""What stands for the weights that a server loads: a digest of their files on this machine, or their name."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from harness.backends.server.random_models import draws_weights, served_drafter, served_target
from harness.config.cell import CellConfig
from harness.models.gguf import gguf_in

NO_WEIGHTS = ("", ".json", ".jinja", ".md", ".txt", ".py", ".yaml", ".yml", ".model")
"""Suffixes of settings, texts and tokenizers."""


def models_of(cell: CellConfig) -> dict[str, str]:
    """What stands for the weights of each model of a cell, by role: digests of folders on this machine, names of
    others."""
    models = {"target": served_target(cell), "drafter": "" if cell.is_baseline else served_drafter(cell)}
    # the name of a folder without weights is a digest of their sizes
    digest = (lambda path: Path(path).name) if draws_weights(cell) else weights_of
    if cell.server.traits.reads_gguf:
        models = {role: str(gguf_in(path) or path) for role, path in models.items() if path}
    found = {role: digest(path) for role, path in models.items() if path}
    return found | {"target": f"{cell.server.engine.value}: {found['target']}"}


def weights_of(path: str) -> str:
    """Digest of the weights on this machine.

    Args:
        path: a folder, a file of weights, or a Hugging Face id.

    Returns:
        16 hex digits, which do not depend on where the weights lie; of a folder without weights its path and a digest
        of its other files; any other path or Hugging Face id as it is.
    """
    # torch takes seconds
    from harness.models.fingerprint import fingerprint

    found = Path(path)
    if found.is_file():
        return _digest("", [found])
    if not found.is_dir():
        return path
    others = fingerprint(found)
    if any(found.glob("*.safetensors")):
        return others
    files = sorted(item for item in found.iterdir() if item.is_file() and item.suffix not in NO_WEIGHTS)
    return _digest(others, files) if files else f"{path}: {others}"


def _digest(others: str, files: Sequence[Path]) -> str:
    """Of names, sizes and both ends, as `fingerprint`, and of what else is known."""
    from harness.models.fingerprint import END_BYTES

    digest = hashlib.sha256(others.encode())
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}\n".encode())
        with path.open("rb") as stream:
            digest.update(stream.read(END_BYTES))
            stream.seek(max(stream.tell(), size - END_BYTES))
            digest.update(stream.read(END_BYTES))
    return digest.hexdigest()[:16]
