"""Table of draft sampling against verification: every pair, marked where pairs coincide in law or are invalid.

This module knows what to show; it does not know where it is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.analysis.cell import CellResult
from harness.analysis.comparison import DRAFT_ORDER, METHOD_ORDER, Group, groups, law, method_name
from harness.analysis.definitions import metric
from harness.report.cell_names import group_title
from harness.report.entries import estimate_number
from harness.report.missing_values import table_notes
from harness.report.table import NONE, Entry, Table

METRIC = "full_draft_length"
SAMPLINGS = tuple(name for name in DRAFT_ORDER if name)
SHOWN = f"Each entry is the {metric(METRIC).label}."
NOT_RUN = "–: this pair was not run."
MARKS = "abcdefghijklmnopqrstuvwxyz"
Skipped = tuple[Mapping[str, Any], str]
"""The swept values of a combination that was left out, and why."""


def drafting_tables(cells: Sequence[CellResult], skipped: Sequence[Skipped] = ()) -> list[Table]:
    """One table for each target, drafter, K and decoding in which some method was run with several draft samplings.

    Args:
        cells: of any runs.
        skipped: what their manifests say was left out.
    """
    found = [(part, cache) for group in groups(cells) for part, cache in _by_cache(group) if _crosses(part)]
    reasons, title = _reasons(skipped), "Drafting by verification: "
    return [
        _table(part, title + group_title(part, cells) + (f" · {cache}" if cache else ""), reasons)
        for part, cache in found
    ]


def _by_cache(group: Group) -> list[tuple[Group, str]]:
    """Parts of a group with one draft-logit cache each; greedy drafts, which have none, are in every part."""
    caches = dict.fromkeys(cell.cache_text for cell in group.cells if cell["draft_cache_dtype"]) or {"": None}
    return [
        (Group(tuple(cell for cell in group.cells if cell.cache_text == cache or not cell["draft_cache_dtype"])), cache)
        for cache in caches
    ]


def _crosses(group: Group) -> bool:
    """Whether there are several methods, and one of them with several draft samplings."""
    methods = [cell["verification"] for cell in group.cells]
    return len(set(methods)) not in (1, len(methods))


def _reasons(skipped: Sequence[Skipped]) -> dict[tuple[str, str], str]:
    """(method, draft sampling) -> why the pair is invalid, of the sweeps over both."""
    found: dict[tuple[str, str], str] = {}
    for values, reason in skipped:
        if "verification" in values and "drafting.sampling" in values:
            found.setdefault((str(values["verification"]), str(values["drafting.sampling"])), reason)
    return found


def _table(group: Group, title: str, reasons: Mapping[tuple[str, str], str]) -> Table:
    methods = {cell["verification"]: method_name(cell) for cell in group.cells}
    methods |= {method: method for method, _ in reasons if method not in methods.values()}
    by_pair = {(cell["verification"], cell["draft_sampling"]): cell for cell in group.cells}
    marks, laws = _marks(group)
    numbers: dict[str, str] = {}

    def entry(verification: str, sampling: str) -> Entry:
        cell, reason = by_pair.get((verification, sampling)), reasons.get((methods[verification], sampling))
        if cell is not None:
            notes_beside = [text for text in (cell["labels"], marks.get(law(cell))) if text]
            return replace(estimate_number(cell, METRIC), note="; ".join(notes_beside))
        if reason is None:
            return NONE
        return f"invalid ({numbers.setdefault(reason, str(len(numbers) + 1))})"

    rows = tuple((name, *(entry(name, sampling) for sampling in SAMPLINGS)) for name in sorted(methods, key=_rank))
    notes = [
        f"({mark}): {', '.join(names)} follow one law, so any difference between them is noise." for mark, names in laws
    ]
    notes += [f"({number}): {reason}" for reason, number in numbers.items()]
    if any(NONE in row for row in rows):
        notes.append(NOT_RUN)
    header = ("verification", *(f"{sampling} drafts" for sampling in SAMPLINGS))
    return Table(title, header, rows, (SHOWN, *notes, *table_notes(group.cells, [METRIC])))


def _marks(group: Group) -> tuple[dict[tuple[str, ...], str], list[tuple[str, list[str]]]]:
    """The mark of each law that several cells share, and the cells with each mark, in words."""
    sharing: dict[tuple[str, ...], list[str]] = {}
    for cell in group.cells:
        sharing.setdefault(law(cell), []).append(f"{cell['verification']} with {cell['draft_sampling']} drafts")
    shared = [(key, names) for key, names in sharing.items() if len(names) > 1]
    marks = {key: MARKS[index] for index, (key, _) in enumerate(shared)}
    return marks, [(marks[key], names) for key, names in shared]


def _rank(method: str) -> tuple[int, str]:
    name = method.split("(", 1)[0]
    return (METHOD_ORDER.index(name) if name in METHOD_ORDER else len(METHOD_ORDER)), method
