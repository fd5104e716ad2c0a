"""Times of the core from commit to commit: a line for each commit and case, and what became slower since one of them.

This module does not know torch.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from harness.kernel_bench.records import KernelResults
from harness.records.csv_table import number, read_rows
from harness.records.files import write_atomically
from harness.records.strict_json import at

SHORTEST_COMMIT = 7
"""Characters of a commit that are compared, at least."""


@dataclass(frozen=True)
class Line:
    """One case at one commit."""

    commit: str
    """With + at its end where the checkout had other changes."""
    device: str
    case: str
    median_us: float
    scatter_us: float
    """The larger of half the distance of the quartiles and the difference of the two medians."""


def lines_of(results: KernelResults) -> list[Line]:
    """The measured cases of the core; raises ValueError where the commit is not known or nothing was measured."""
    git = results.provenance.get("git") or {}
    commit = git.get("commit")
    if not commit or not results.machine.is_measurement:
        raise ValueError("expected results from a GPU and a git checkout for a history, found none")
    commit += "+" * bool(git.get("dirty"))
    found = []
    for each in results.of_core:
        timing = each.timing
        assert timing is not None
        again = timing.median_us if each.again_us is None else each.again_us
        scatter = max((timing.upper_us - timing.lower_us) / 2, abs(again - timing.median_us))
        device = results.machine.device
        found.append(Line(commit, device, each.case.name, round(timing.median_us, 2), round(scatter, 2)))
    return found


def read_history(path: Path) -> list[Line]:
    """The lines of a file; raises ValueError where it is none."""
    try:
        return [_line(row) for row in read_rows(path)]
    except (OSError, ValueError) as error:
        columns = ", ".join(field.name for field in fields(Line))
        raise ValueError(f"{path}: expected a CSV with the columns {columns}; {error}") from error


def _line(row: Mapping[str, str]) -> Line:
    expected = [field.name for field in fields(Line)]
    if list(row) != expected:
        raise ValueError(f"found {', '.join(row)}")
    empty = [name for name, text in row.items() if not text]
    if empty:
        raise ValueError(f"{empty[0]}: found nothing")
    median_us, scatter_us = (at(name, number, row[name]) for name in ("median_us", "scatter_us"))
    if median_us <= 0 or scatter_us < 0:
        raise ValueError(f"expected times, found median_us {median_us:g}, scatter_us {scatter_us:g}")
    return Line(row["commit"], row["device"], row["case"], median_us, scatter_us)


def add_to_history(results: KernelResults, path: Path) -> list[Line]:
    """Write the results into the file, in the place of those of the same commit, device and case; returns all lines."""
    new = lines_of(results)
    replaced = {(line.commit, line.device, line.case) for line in new}
    old = read_history(path) if path.is_file() else []
    lines = [line for line in old if (line.commit, line.device, line.case) not in replaced] + new
    stream = io.StringIO()
    writer = csv.DictWriter(stream, fieldnames=[field.name for field in fields(Line)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(line) for line in lines)
    write_atomically(path, stream.getvalue().encode())
    return lines


def slower_since(commit: str, now: list[Line], history: list[Line]) -> list[str]:
    """A line for each case that takes longer than at a commit, by more than the scatter of both.

    Args:
        commit: its first characters, SHORTEST_COMMIT or more.
        now: of one commit and device.
        history: of any.

    Raises:
        ValueError: there is no case of that commit and device to compare with.
    """
    if len(commit) < SHORTEST_COMMIT:
        raise ValueError(f"--against: expected {SHORTEST_COMMIT} characters of a commit or more, found {commit!r}")
    before = {(line.device, line.case): line for line in history if line.commit.startswith(commit)}
    pairs = [(before[line.device, line.case], line) for line in now if (line.device, line.case) in before]
    if not pairs:
        known = ", ".join(dict.fromkeys(line.commit[:SHORTEST_COMMIT] for line in history)) or "none"
        raise ValueError(f"--against {commit}: expected times of these cases on this GPU, found none; commits: {known}")
    return [
        f"{new.case}: {new.median_us:.1f} us, {old.median_us:.1f} before ({new.median_us / old.median_us:.2f} times)"
        for old, new in pairs
        if new.median_us - old.median_us > old.scatter_us + new.scatter_us
    ]
