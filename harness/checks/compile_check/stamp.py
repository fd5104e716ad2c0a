"""Variants that a compile check found nothing wrong with, kept in a file, so that the same are not compiled again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.checks.compile_check.compiled import RecordedLaunch
from harness.records.files import write_atomically


class Vouched(NamedTuple):
    """A variant that was compiled without a complaint."""

    key: str
    """Of what was compiled, see RecordedLaunch."""
    code: str
    """Digest of its machine code."""


class Stamp(NamedTuple):
    """A check without a complaint."""

    triton: str
    """Triton's version."""
    variants: Mapping[str, Vouched]
    """By their names (`names_of`)."""


class Difference(NamedTuple):
    """The machine code of a check beside that of the check before it."""

    num_same: int
    other: Sequence[str]
    """Names of variants with other machine code."""
    new: Sequence[str]
    """Names that were not there."""
    gone: Sequence[str]


def names_of(launches: Sequence[RecordedLaunch]) -> list[str]:
    """A name for each: its kernel, what launched it, and a number where that is not enough."""
    counts: Counter[str] = Counter()
    names = []
    for launch in launches:
        name = f"{launch.variant.kernel}: {launch.launched_by}"
        counts[name] += 1
        names.append(name if counts[name] == 1 else f"{name} ({counts[name]})")
    return names


def difference(stamp: Stamp, before: Stamp) -> Difference:
    """What has other machine code than before, by name."""
    common = [name for name in stamp.variants if name in before.variants]
    other = [name for name in common if stamp.variants[name].code != before.variants[name].code]
    new = [name for name in stamp.variants if name not in before.variants]
    gone = [name for name in before.variants if name not in stamp.variants]
    return Difference(len(common) - len(other), other, new, gone)


def read_stamp(path: Path) -> Stamp | None:
    """The stamp in a JSON file; None where there is no such file.

    Raises:
        ValueError: the file holds something else.
    """
    try:
        triton, variants = _fields(**json.loads(path.read_text(encoding="utf-8")))
        return Stamp(triton, {name: Vouched(*pair.split(" ")) for name, pair in variants.items()})
    except FileNotFoundError:
        return None
    except (TypeError, ValueError, AttributeError, OSError) as error:
        raise ValueError(
            f"{path}: expected the stamp of a compile check, found {error}; delete it to compile again"
        ) from error


def _fields(triton: str, variants: dict[str, str]) -> tuple[str, dict[str, str]]:
    return triton, variants


def write_stamp(path: Path, stamp: Stamp) -> None:
    """Write a stamp as JSON, a line for each variant."""
    lines = {"triton": stamp.triton, "variants": {name: " ".join(item) for name, item in stamp.variants.items()}}
    write_atomically(path, (json.dumps(lines, indent=1) + "\n").encode())
