"""What is wrong with what was recorded and compiled."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from harness.checks.compile_check.compiled import SHARED_BYTES, CompiledVariant, RecordedLaunch


class KnownSpill(NamedTuple):
    """A spill that is told and is no complaint."""

    kernel: str
    target: int
    num_registers: int
    most_bytes: int
    """Of its stores, and of its loads."""
    why: str


KNOWN_SPILLS = (
    KnownSpill(
        "_row_reduce_kernel",
        90,
        56,
        4,
        "early draws from 151,936 or 154,880 tokens; with 48 registers there is none, but that is not timed yet",
    ),
    KnownSpill(
        "_skinny_linear_kernel",
        90,
        255,
        8,
        "gated products of weights of 8 bits, 96 tokens; tiles were chosen by time (harness/models/fused/tilings.py)",
    ),
)


def known_spill(item: CompiledVariant) -> KnownSpill | None:
    """The known spill that a variant has, if it is no larger."""
    most = max(item.spill_store_bytes, item.spill_load_bytes)
    found = item.kernel, item.target, item.num_registers
    return next((known for known in KNOWN_SPILLS if known[:3] == found and 0 < most <= known.most_bytes), None)


def known_spills(variants: Iterable[CompiledVariant]) -> list[str]:
    """A line for each known spill that some variants have."""
    by_known: dict[KnownSpill, list[CompiledVariant]] = {}
    for item in variants:
        if (known := known_spill(item)) is not None:
            by_known.setdefault(known, []).append(item)
    lines = []
    for known, items in by_known.items():
        stored, loaded = (max(getattr(item, f"spill_{kind}_bytes") for item in items) for kind in ("store", "load"))
        lines.append(
            f"known: {len(items)} variants of sm_{known.target} {known.kernel} spill up to {stored} bytes stored and "
            f"{loaded} loaded ({items[0].launched_by}): {known.why}"
        )
    return lines


def complaints(variants: Iterable[CompiledVariant]) -> list[str]:
    """A line for every variant with register spills that are not known, or with too much shared memory."""
    lines = []
    for item in variants:
        name = f"sm_{item.target} {item.kernel} ({item.launched_by})"
        if item.spills and known_spill(item) is None:
            lines.append(
                f"{name}: expected no register spills, found {item.spill_store_bytes} bytes stored and "
                f"{item.spill_load_bytes} loaded; give it more warps or smaller tiles"
            )
        if item.shared_bytes > SHARED_BYTES[item.target]:
            lines.append(
                f"{name}: expected {SHARED_BYTES[item.target]} bytes of shared memory at most, found "
                f"{item.shared_bytes}; give it smaller tiles or fewer stages"
            )
    return lines


def never_launched(launches: Iterable[RecordedLaunch], expected: Collection[tuple[int, str]]) -> list[str]:
    """A line for every target and kernel that no launch is of."""
    missing = sorted(set(expected) - {(item.target, item.variant.kernel) for item in launches})
    return [f"sm_{target} {name}: expected a launch that compiles it, found none; add one" for target, name in missing]
