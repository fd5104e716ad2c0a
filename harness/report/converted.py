"""Acceptance numbers of other tools in our definitions, as tables and a document; every number says how it was got."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isnan
from typing import Any

from harness.analysis.converted import BY_POSITION, Basis, Converted, ConvertedRun
from harness.analysis.intervals import MIN_PROMPTS
from harness.report.document import Document, Section
from harness.report.files import csv_text
from harness.report.number_format import Number
from harness.report.table import NONE, Entry, Table

DERIVED = "*"
"""Follows a number that the file does not count itself."""
MARK_NOTE = (
    f"{DERIVED}: derived from other numbers of the file, by the formula below; {NONE}: not derivable, and why below"
)
COLUMNS = ("file", "part", "format", "column", "value", "low", "high", "basis", "how")
NO_INTERVALS = "No intervals: they need counts by request, of two prompts at least, and the file has none."
INTERVALS = (
    "Brackets: 95 % bootstrap intervals over prompts; where the file names no prompts, each request stands for one."
)
NOT_SEEN = "written from that source; not seen run against the program's own output"
TITLE = "Acceptance numbers of other tools in this project's definitions"


def converted_document(runs: Sequence[ConvertedRun]) -> Document:
    """All of some files: side by side, then each with its formulas, its own numbers and its definitions."""
    sections = [Section("Side by side", tables=(side_by_side(runs),), below=(MARK_NOTE,))] if len(runs) > 1 else []
    for run in runs:
        sections.append(Section(run.name, (_about(run),), tables=tuple(_tables(run)), below=tuple(_below(run))))
    for run in {run.format: run for run in runs}.values():
        items = tuple(f"{name}: {text}" for name, text in run.definitions.items())
        sections.append(Section(f"What the numbers of {run.format} mean", items=items))
    return Document(TITLE, sections=tuple(sections))


def side_by_side(runs: Sequence[ConvertedRun]) -> Table:
    """A row for each run, with the numbers that any of them has."""
    by_run = [{item.column: item for item in run.numbers} for run in runs]
    columns = list(
        dict.fromkeys(item.column for run in runs for item in run.numbers if item.basis is not Basis.missing)
    )
    columns.sort(key=_order)
    labels = {item.column: item.label for run in runs for item in run.numbers}
    rows = tuple(
        (run.name, run.format, *(_entry(items[name]) if name in items else NONE for name in columns))
        for run, items in zip(runs, by_run, strict=True)
    )
    return Table("", ("file", "format", *(labels[name] for name in columns)), rows)


def numbers_csv(runs: Sequence[ConvertedRun]) -> str:
    """A row for each number."""
    rows = [
        (run.file, run.reading.label, run.format, item.column, *_values(item), item.basis.value, item.how)
        for run in runs
        for item in run.numbers
    ]
    return csv_text(COLUMNS, rows)


def numbers_content(runs: Sequence[ConvertedRun]) -> list[dict[str, Any]]:
    """The same for JSON, with what the file itself tells."""
    return [
        {
            "file": run.file,
            "part": run.reading.label,
            "format": run.format,
            "source": run.source,
            "seen": run.seen or None,
            "definitions": dict(run.definitions),
            "notes": list(run.reading.notes),
            "told": [{"name": item.name, "values": list(item.values), "meaning": item.meaning} for item in run.told],
            "numbers": {item.column: _number(item) for item in run.numbers},
        }
        for run in runs
    ]


def _number(item: Converted) -> Mapping[str, Any]:
    value, low, high = _values(item)
    return {"value": value, "low": low, "high": high, "basis": item.basis.value, "how": item.how}


def _values(item: Converted) -> tuple[float | None, ...]:
    return tuple(None if isnan(value) else value for value in (item.value, item.low, item.high))


def _order(column: str) -> tuple[int, int]:
    """Totals first, then one kind of position after the other."""
    stem, _, place = column.rpartition("_")
    return (BY_POSITION.index(stem) + 1, int(place)) if stem in BY_POSITION else (0, 0)


def _about(run: ConvertedRun) -> str:
    seen = f"its reader ran against output of {run.seen}" if run.seen else NOT_SEEN
    notes = "".join(f" {note[0].upper()}{note[1:]}." for note in run.reading.notes)
    return f"{run.format}: {run.title}. Definitions: {run.source}; {seen}.{notes}"


def _entry(item: Converted) -> Entry:
    if item.basis is Basis.missing:
        return NONE
    has_interval = not isnan(item.low)
    mark = DERIVED if item.basis is Basis.derived else ""
    low, high = (item.low, item.high) if has_interval else (None, None)
    is_whole = item.style != "count" or float(item.value).is_integer()
    return Number(item.value, low, high, style=item.style if is_whole else "length", mark=mark)


def _tables(run: ConvertedRun) -> Iterator[Table]:
    places = {text: place for place, text in enumerate(_reasons(run), 1)}
    rows = tuple(
        (item.label, _entry(item), " ".join([item.basis.value, *_places(item, places)])) for item in run.numbers
    )
    yield Table("", ("number", "value", "how it was got"), rows)


def _places(item: Converted, places: Mapping[str, int]) -> list[str]:
    return [f"({place})" for place in sorted(places[text] for text in _parts(item))]


def _reasons(run: ConvertedRun) -> list[str]:
    return list(dict.fromkeys(text for item in run.numbers for text in _parts(item)))


def _parts(item: Converted) -> list[str]:
    """The formulas of a derived number, the reason of a missing one."""
    if not item.how:
        return []
    return item.how.split("; ") if item.basis is Basis.derived else [item.how]


def _below(run: ConvertedRun) -> Iterator[str]:
    for item in run.told:
        yield f"the file itself: {item.name} = {', '.join(f'{value:.3f}' for value in item.values)}: {item.meaning}"
    yield from (f"({place}) {text}" for place, text in enumerate(_reasons(run), 1))
    if all(isnan(item.low) for item in run.numbers):
        yield NO_INTERVALS
        return
    num_prompts = len(set(run.reading.prompts))
    yield INTERVALS + (f" Of {num_prompts} prompts they are too narrow." if num_prompts < MIN_PROMPTS else "")
