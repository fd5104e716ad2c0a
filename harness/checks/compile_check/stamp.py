"""What a compile check found, kept with a digest of its sources, so that the same are not compiled again."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from harness.engine.compile_ahead.compile import CompiledVariant
from harness.records.files import write_atomically

COMPILED = ("kernels", "harness/models/fused", "harness/checks/compile_check", "harness/engine/slots.py")
"""Folders and files of the checkout that decide what is compiled."""
NOT_COMPILED = "kernels/reference"


class Stamp(NamedTuple):
    """A check without a complaint."""

    sources: str
    """Digest of the sources."""
    triton: str
    """Triton's version."""
    num_variants: int
    num_kernels: int


def digest(root: Path) -> str:
    """Of the code that decides what is compiled, comments and layout aside.

    Args:
        root: the checkout.
    """
    found = hashlib.sha256()
    for place in COMPILED:
        top = root / place
        for path in sorted(top.rglob("*.py")) if top.is_dir() else [top]:
            name = path.relative_to(root).as_posix()
            if not name.startswith(f"{NOT_COMPILED}/"):
                found.update(f"{name}\n{ast.dump(ast.parse(path.read_text(encoding='utf-8')))}\n".encode())
    return found.hexdigest()


def stamp_of(found: Sequence[CompiledVariant], sources: str, triton: str) -> Stamp:
    """Of what a check compiled."""
    return Stamp(sources, triton, len(found), len({item.kernel for item in found}))


def read_stamp(path: Path) -> Stamp | None:
    """The stamp in a JSON file; None where there is no such file.

    Raises:
        ValueError: the file holds something else.
    """
    try:
        return Stamp(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (TypeError, ValueError, OSError) as error:
        raise ValueError(
            f"{path}: expected the stamp of a compile check, found {error}; delete it to compile again"
        ) from error


def write_stamp(path: Path, stamp: Stamp) -> None:
    """Write a stamp as JSON."""
    write_atomically(path, (json.dumps(stamp._asdict(), indent=2) + "\n").encode())
