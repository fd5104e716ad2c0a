"""Times of the core from commit to commit: a line for each commit and case, and what became slower since one of them.

This module does not know torch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from harness.checks.kernel_bench.cases import cases_of
from harness.checks.kernel_bench.config import Preset
from harness.checks.kernel_bench.records import KernelResults
from harness.records.csv_table import number, read_rows
from harness.records.strict_json import at
from harness.report.files import csv_text, write_files

SHORTEST_COMMIT = 7
"""Characters of a commit that are compared, at least."""


@dataclass(frozen=True)
class Line:
    """One case at one commit."""

    commit: str
    """With + at its end where the checkout had other code; a history that grew is none."""
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
    commit += "+" * bool(git.get("diff"))
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
    text = csv_text([field.name for field in fields(Line)], map(astuple, lines))
    write_files(path.parent, {path.name: text})
    return lines


@dataclass(frozen=True)
class Comparison:
    """A run beside an earlier commit on the same model of GPU."""

    commit: str
    """That was found, in full."""
    num_compared: int
    slower: list[str]
    """A line for each case that takes longer by more than the scatter of both."""
    missing: list[str]
    """A line for each case that only one side has, or has a time of."""


def commit_in(history: list[Line], start: str, device: str) -> str:
    """The one commit that begins so and was measured on this model of GPU.

    Args:
        history: of any commits and devices.
        start: first characters of a commit, SHORTEST_COMMIT or more; with + at its end one with other changes.
        device: as in the history.

    Raises:
        ValueError: there is none, or there are several.
    """
    text = start.removesuffix("+")
    if len(text) < SHORTEST_COMMIT:
        raise ValueError(f"--against: expected {SHORTEST_COMMIT} characters of a commit or more, found {start!r}")
    known = dict.fromkeys((line.commit, line.device) for line in history)
    found = [each for each in known if each[0].startswith(text) and each[0].endswith("+") == start.endswith("+")]
    commits = {commit for commit, name in found if name == device}
    if len(commits) != 1:
        short = [f"{_short(commit)} ({name})" for commit, name in (found or known)]
        what = "several" if commits else "none"
        raise ValueError(
            f"--against {start}: expected one commit with times on {device}, found {what}; the history has "
            f"{', '.join(short) or 'no commit'}"
        )
    return commits.pop()


def compared(commit: str, now: list[Line], history: list[Line], named: Collection[str]) -> Comparison:
    """A run beside a commit of a history.

    Args:
        commit: in full, as `commit_in` finds it.
        now: the run's lines, of one device.
        history: of before the run.
        named: all cases of the run, also those without a time; cases that it leaves out by its settings are counted,
            cases that are none any more are named.
    """
    devices = {line.device for line in now}
    before = {line.case: line for line in history if line.commit == commit and line.device in devices}
    after = {line.case: line for line in now}
    slower = [
        f"{case}: {new.median_us:.1f} us, {old.median_us:.1f} before ({new.median_us / old.median_us:.2f} times)"
        for case, new in after.items()
        if (old := before.get(case)) and new.median_us - old.median_us > old.scatter_us + new.scatter_us
    ]
    exist = {case.name for preset in Preset for case in cases_of(preset)}
    gone = [case for case in before if case not in after and (case in named or case not in exist)]
    num_left_out = len(before.keys() - after.keys()) - len(gone)
    missing = [f"only at {_short(commit)}: {case}" for case in gone]
    missing += [f"not at {_short(commit)}: {case}" for case in after if case not in before]
    if num_left_out:
        missing.append(f"only at {_short(commit)}: {num_left_out} cases that these settings leave out")
    return Comparison(commit, len(before.keys() & after.keys()), slower, missing)


def _short(commit: str) -> str:
    return commit[:SHORTEST_COMMIT] + "+" * commit.endswith("+")
