"""Which calls launch only kernels that Triton's cache holds: notes beside that cache, so that a later process need not
run the calls to find out.

A note holds for one state of the code, the libraries and the target. A note of kernels that were taken out of the cache
since costs time alone: what is missing is compiled where it is launched.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch
import triton
from triton import knobs

from harness.compile_ahead.variant import Variant, give_common_key
from harness.records.files import UnwritableError, write_atomically

ROOT = Path(__file__).parents[2]
PACKAGES = ("kernels", "harness")
FOLDER = "rejection-lab-calls"
_launched: dict[str, tuple[str, str]] = {}
"""Module and name of each kernel that calls of this process launch, by a digest of the variant. A call that launches
what one before it has launched shows nothing of that, so that its note names all."""


def known(call: str, target: int) -> set[str] | None:
    """Digests of the variants that a call launches, all of which the cache holds; None if that is not known.

    Its kernels have the keys from here on by which the cache holds them.

    Args:
        call: everything that its launches follow from, beside code and libraries.
        target: compute capability without the dot, such as 90.
    """
    try:
        found = json.loads(_note(call, target).read_text())
        for module, kernel in found.values():
            give_common_key(module, kernel)
    except (OSError, ValueError, TypeError, ImportError, AttributeError):
        return None
    _launched.update(found)
    return set(found)


def launched(variants: Iterable[Variant]) -> None:
    """Calls of this process launch these."""
    for variant in variants:
        _launched[hashlib.sha256(repr(variant).encode()).hexdigest()[:16]] = variant.module, variant.kernel


def remember(call: str, target: int) -> None:
    """Note that the cache holds all that this process has launched, what a call launches among it; see `known`."""
    # without notes the next process looks again
    with suppress(UnwritableError):
        write_atomically(_note(call, target), json.dumps(_launched).encode())


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
