"""Which calls launch only kernels that Triton's cache holds: notes beside that cache, so that a later process need not
run the calls to find out.

A note is of one call, in one state of the code, the libraries and the target, and names the kernels that the call has
launched. A note of kernels that were taken out of the cache since costs time alone: what is missing is compiled where
it is launched. The notes that were used least recently make room for new ones.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path

import torch
import triton
from triton import knobs

from harness.records.files import UnwritableError, write_atomically
from kernels.methods.hooks import common_key

ROOT = Path(__file__).parents[3]
PACKAGES = ("kernels", "harness")
FOLDER = "rejection-lab-calls"
MAX_NOTES = 2000
"""Of some kilobytes each; a sweep needs one a cell at most."""


def known(call: str, target: int) -> set[str] | None:
    """The keys by which the cache holds the kernels that a call launches; None if that is not known.

    The kernels have these keys from here on.

    Args:
        call: everything that its launches follow from, beside code and libraries.
        target: compute capability without the dot, such as 90.
    """
    path = _note(call, target)
    try:
        found = json.loads(path.read_text())
        for module, kernel in found.values():
            common_key(getattr(import_module(module), kernel))
    except (OSError, ValueError, TypeError, ImportError, AttributeError):
        return None
    # used now; a folder that cannot be written has no new notes either
    with suppress(OSError):
        os.utime(path)
    return set(found)


def remember(call: str, target: int, kernels: Mapping[str, tuple[str, str]]) -> None:
    """Note that the cache holds all that a call launches; see `known`.

    Args:
        call: as for `known`.
        target: likewise.
        kernels: module and name of each, by its key in the cache.
    """
    path = _note(call, target)
    # without notes the next process looks again
    with suppress(UnwritableError):
        write_atomically(path, json.dumps(kernels).encode())
        _remove_old(path.parent)


def _remove_old(folder: Path) -> None:
    """Keep the notes that were used last; other processes may do the same."""
    # what another process is writing begins with a dot
    notes = [path for path in folder.iterdir() if not path.name.startswith(".")]
    if len(notes) <= MAX_NOTES:
        return
    used_s: dict[Path, float] = {}
    for path in notes:
        with suppress(FileNotFoundError):
            used_s[path] = path.stat().st_mtime
    for path in sorted(used_s, key=lambda path: used_s[path])[: len(used_s) - MAX_NOTES]:
        path.unlink(missing_ok=True)


def _note(call: str, target: int) -> Path:
    versions = f"torch {torch.__version__}, triton {triton.__version__}, target {target}"
    name = hashlib.sha256("\n".join((_code(), versions, call)).encode()).hexdigest()
    return Path(knobs.cache.dir) / FOLDER / name


@cache
def _code() -> str:
    """A digest of all that steps are made of."""
    digest = hashlib.sha256()
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
