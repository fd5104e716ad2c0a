"""The measured numbers that pages quote, written from their tables, and results/index.csv, which names the tables.

    python -m harness.report.quoted            writes numbers and index, and tells what has changed
    python -m harness.report.quoted --check    only tells, with exit code 1; part of make check

A quote is a number with its interval, 1.09 [1.00, 1.19], in a section that links to folders of results/, itself or
through a section that it links to. A new one is looked for there by its digits, rounded as the page shows them: of
several such numbers the index names one of cells.csv if it can, and the one whose row and column share most words with
the page. From then on the index is its source: after the table has changed, the page gets the number of the same row
and column. A number with a unit and no interval, 25.3 us, is in the index where a CSV file there has it. In sections
that explain the mark of a disturbed time, the mark is written too. Pages that were written by hand beside tables are
pages too; other pages may quote them, but they quote tables alone.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from harness.analysis.columns import PER_POSITION, SETTINGS, dictionary, with_interval
from harness.analysis.definitions import metric
from harness.report.cell_names import DISTURBED
from harness.report.files import csv_text

NOTES = ("NOTES.md", "TREES.md", "README.md")
"""Names of files in folders of results/ that were written by hand, of several commits, which their text names."""
PAGES = (
    *("*.md", "kernels/**/*.md", "harness/**/*.md", "experiments/**/*.md", "guides/*.md", "results/*.md"),
    *(f"results/*/{name}" for name in NOTES),
)
INDEX = Path("results/index.csv")
COLUMNS = ("name", "value", "low", "high", "unit", "what", "file", "line", "command", "commit", "machine", "pages")
NUMBER = r"[-+−]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)"
INTERVAL = re.compile(rf"(?<![\w.,])({NUMBER})(?: %)?\s\[({NUMBER}),\s({NUMBER})\]")
WITH_UNIT = re.compile(rf"(?<![\w.,])({NUMBER}) (us|(?:output )?tokens/s)(?!\w)")
COLUMN_OF_UNIT = {"us": "median_us", "tokens/s": "output_tokens_per_s"}
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
UNITS = {name: unit for name, unit, _ in dictionary()} | {"median_us": "us"}
LABELS = {*SETTINGS, "case", "implementation"} - {"run", "cell_id", "baseline_cell_id"}
PROVENANCE = {
    "command": r"[cC]ommand: `(.+?)`|\"command\": ?\"(.+?)\"",
    "commit": r"git\.commit \| ([^|]+) \||\"commit\": ?\"(\w+)\"|commit (\w{40})",
    "machine": r"gpu\.name \| ([^|]+) \||\"name\": ?\"(NVIDIA [^\"]+)\"|(NVIDIA H\w+),|cpu\.model \| ([^|]+) \|",
}


class UnknownQuoteError(ValueError):
    """A page quotes a number that no table has to which its section links."""


@dataclass(frozen=True)
class Quote:
    """A number on a page: its digits (value, low, high; or the value alone), its unit, and the words around it."""

    numbers: tuple[str, ...]
    unit: str
    page: str
    """With the anchor of its section."""
    line: int
    places: tuple[tuple[int, int], ...]
    """Where each of its digits begins and ends in the page."""
    mark_place: int | None
    """Where its mark stands, or would; None where the section does not explain the mark."""
    is_marked: bool
    near: frozenset[str]
    section: frozenset[str]


@dataclass(frozen=True)
class Entry:
    """A number of a table: value, low, high (or the value alone), its row and column, and where it stands."""

    numbers: tuple[float, ...]
    name: str
    what: str
    file: Path
    line: int
    commit: str = ""
    """Where a row names its own."""
    is_disturbed: bool = False
    """Whether it is marked as a time of a machine that was disturbed."""
    texts: tuple[str, ...] = ()
    """As a Markdown file prints them."""

    @property
    def key(self) -> tuple[str, str, str, int]:
        """Which number of which file it is, whatever its value."""
        return self.file.as_posix(), self.name, self.what, len(self.numbers)


@dataclass(frozen=True)
class Written:
    """What pages and index are to hold."""

    pages: Mapping[str, str]
    """Path from the root -> text, of the pages that change."""
    changes: tuple[str, ...]
    """Each number that changes: page, line, before and after."""
    index: str
    """Text of results/index.csv."""


def written(root: Path, pages: Mapping[str, str] | None = None) -> Written:
    """The pages with the numbers of their tables, and the index.

    Args:
        root: of the repository.
        pages: text by path from the root, in place of what these files hold.

    Raises:
        UnknownQuoteError: names page, line and number.
    """
    paths = (path for pattern in PAGES for path in sorted(root.glob(pattern)) if path.name != "CHANGELOG.md")
    texts = {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in paths} | dict(pages or {})
    known, entries = _known(root), cache(_entries)
    pages_of: dict[Entry, list[str]] = {}
    edits: dict[str, list[tuple[int, int, str]]] = {}
    changes = []
    for quote, folders in _quotes(texts):
        tables = [entry for folder in folders for entry in entries(root / folder)]
        if _is_by_hand(Path(quote.page.partition("#")[0])):
            tables = [entry for entry in tables if not _is_by_hand(entry.file.relative_to(root))]
        before = _best(quote, known.get(quote.page, ()))
        entry = None if before is None else next((entry for entry in tables if entry.key == before.key), None)
        entry = entry or _best(quote, tables)
        if entry is not None:
            told = pages_of.setdefault(entry, [])
            told += [quote.page] if quote.page not in told else []
            found = [*_edits(quote, before or entry, entry)]
            if found:
                page, digits = quote.page.partition("#")[0], " ".join(text or "not marked" for *_, text in found)
                edits.setdefault(page, []).extend(found)
                changes.append(f"{page}, line {quote.line}: {' '.join(quote.numbers)} -> {digits}")
        elif not quote.unit:
            value, low, high = quote.numbers
            raise UnknownQuoteError(
                f"{quote.page}, line {quote.line}: no table in {', '.join(folders)} has {value} [{low}, {high}]; "
                "correct the page, or link to the folder that has it"
            )
    changed = {page: _edited(texts[page], found) for page, found in edits.items()}
    return Written(changed, tuple(changes), _index(root, pages_of))


def _is_by_hand(page: Path) -> bool:
    """Whether it is one of NOTES, by its path from the root."""
    return page.name in NOTES and page.parts[0] == "results" and len(page.parts) == 3


def _known(root: Path) -> dict[str, list[Entry]]:
    """Page and anchor -> the numbers that the index has of them, as the tables had them when it was written."""
    found: dict[str, list[Entry]] = {}
    if not (root / INDEX).is_file():
        return found
    with (root / INDEX).open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            numbers = tuple(float(row[name]) for name in ("value", "low", "high") if row[name])
            entry = Entry(numbers, row["name"], row["what"], root / row["file"], int(row["line"]))
            for page in row["pages"].split():
                found.setdefault(page, []).append(entry)
    return found


def _best(quote: Quote, entries: Iterable[Entry]) -> Entry | None:
    """The entry with its digits that is most like it, of several the first; None where none has them."""
    found = [entry for entry in entries if _factor(quote, entry) is not None]
    found.sort(key=lambda entry: (entry.file, entry.line, entry.what))
    return max(found, key=lambda entry: _likeness(quote, entry), default=None)


def _edits(quote: Quote, before: Entry, now: Entry) -> Iterator[tuple[int, int, str]]:
    """What of the page becomes what, where it is not the number of the table.

    Args:
        before: the number that the page shows.
        now: that of the same row and column today.
    """
    if _factor(quote, now) is None:
        factor = _factor(quote, before)
        assert factor is not None
        is_signed = any(text.startswith("+") for text in (*quote.numbers, *now.texts))
        for (start, end), shown, number in zip(quote.places, quote.numbers, now.numbers, strict=True):
            yield start, end, _digits(shown, factor * number, is_signed=is_signed)
    if quote.mark_place is not None and quote.is_marked != now.is_disturbed:
        yield quote.mark_place, quote.mark_place + quote.is_marked, DISTURBED if now.is_disturbed else ""


def _digits(shown: str, number: float, *, is_signed: bool) -> str:
    """A number with the decimals, separators and minus of what a page shows."""
    text = f"{number:{'+' if is_signed and number else ''},.{len(shown.partition('.')[2])}f}"
    text = re.sub(r"(?<!\d)0(?=\.)", "", text) if shown.lstrip("+-−").startswith(".") else text
    return text.replace("-", "−") if "−" in shown else text


def _edited(text: str, edits: Sequence[tuple[int, int, str]]) -> str:
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _index(root: Path, pages_of: Mapping[Entry, Sequence[str]]) -> str:
    rows, provenance = list[list[str]](), cache(_provenance)
    for entry in sorted(pages_of, key=lambda entry: (entry.file, entry.line, entry.what, entry.numbers)):
        row = dict(zip(("value", "low", "high"), (f"{number:.7g}" for number in entry.numbers), strict=False))
        row |= {"name": entry.name, "what": entry.what, "file": entry.file.relative_to(root).as_posix()}
        row |= (
            {"unit": _unit(entry.what)}
            | provenance(entry.file, root)
            | ({"commit": entry.commit, "command": ""} if entry.commit else {})
        )
        row |= {"line": str(entry.line), "pages": " ".join(pages_of[entry])}
        rows.append([row.get(name, "") for name in COLUMNS])
    return csv_text(COLUMNS, rows)


def _quotes(texts: Mapping[str, str]) -> Iterator[tuple[Quote, list[str]]]:
    """Every quote, with the folders where it may come from."""
    sections = {(page, anchor): found for page in texts for anchor, found in _sections(texts[page])}
    links = {place: LINK.findall(text) for place, (_, _, text) in sections.items()}
    targets = {
        place: [_target(place[0], link) for link in found if "://" not in link] for place, found in links.items()
    }
    for (page, anchor), (first, start, text) in sections.items():
        near = targets[page, anchor]
        linked = [*near, *(target for place in near for target in targets.get(place, ()))]
        parts = (path.split("/") for path, _ in linked if path.startswith("results/"))
        folders = sorted({f"results/{each[1]}" for each in parts if len(each) > 2 or "." not in each[1]})
        if folders:
            yield from ((quote, folders) for quote in _quotes_of(f"{page}#{anchor}", first, start, text))


def _sections(text: str) -> Iterator[tuple[str, tuple[int, int, str]]]:
    """Anchor, and first line, place in the page and text of what stands below each heading; code is blank."""
    line, start = 1, 0
    text = FENCED.sub(lambda code: re.sub(r"[^\n]", " ", code[0]), text)
    for section in re.split(r"^(?=#+ )", text, flags=re.MULTILINE):
        heading = section.partition("\n")[0].lstrip("#").strip().lower()
        yield re.sub(r"[^\w\- ]", "", heading).replace(" ", "-"), (line, start, section)
        line, start = line + section.count("\n"), start + len(section)


def _target(page: str, link: str) -> tuple[str, str]:
    """Path from the root, and anchor, that a link leads to."""
    path, _, anchor = link.partition("#")
    walked: list[str] = []
    for part in [*page.split("/")[:-1], *path.rstrip("/").split("/")] if path else page.split("/"):
        walked = walked[:-1] if part == ".." else [*walked, part]
    return "/".join(walked), anchor


def _quotes_of(page: str, first: int, start: int, text: str) -> Iterator[Quote]:
    """Those of a section.

    Args:
        first: its first line in the page.
        start: its first character in the page.
    """
    section, header, lines = _words(text), "", text.split("\n")
    explains_mark = f"{DISTURBED}:" in text
    for number, line in enumerate(lines):
        if not line.startswith("|") or lines[number + 1].startswith("|-"):
            header = line if line.startswith("|") else ""
        near = _words(f"{header} {line}")
        for pattern in (INTERVAL, WITH_UNIT):
            for found in pattern.finditer(line):
                *digits, unit = (*found.groups(), "") if pattern is INTERVAL else found.groups()
                spans = (found.span(each) for each in range(1, len(digits) + 1))
                places = tuple((start + begin, start + end) for begin, end in spans)
                end = found.end() if explains_mark and pattern is INTERVAL else None
                yield Quote(
                    tuple(digits),
                    unit.removeprefix("output "),
                    page,
                    first + number,
                    places,
                    None if end is None else start + end,
                    line[found.end() :].startswith(DISTURBED),
                    near,
                    section,
                )
        start += len(line) + 1


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z]\w*|\d[\d.]*", text.lower().replace("-", "")))


def _entries(folder: Path) -> list[Entry]:
    """Every number of the tables in a folder."""
    tables = [_numbered(_of_csv(path)) for path in sorted(folder.rglob("*.csv"))]
    pages = [_numbered(_of_markdown(path)) for path in sorted(folder.rglob("*.md"))]
    return [entry for entries in (*tables, *pages) for entry in entries]


def _numbered(entries: Iterable[Entry]) -> Iterator[Entry]:
    """The entries of a file, those of the same row and column numbered, so that keys are never equal."""
    count: Counter[tuple[str, str, str, int]] = Counter()
    for entry in entries:
        count[entry.key] += 1
        number = count[entry.key]
        yield entry if number == 1 else replace(entry, name=f"{entry.name} ({number})")


def _of_csv(path: Path) -> Iterator[Entry]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    told = [name for name in rows[0] if name in LABELS and len({row[name] for row in rows}) > 1]
    for line, row in enumerate(rows, start=2):
        label = ", ".join(f"{name} {row[name]}" for name in told if row[name])
        for what in row:
            values = [row[name] for name in with_interval(what) if row.get(name)]
            if len(values) == 3:
                is_disturbed = bool(row.get("disturbed")) and not metric(what).of_tokens
                yield Entry(tuple(map(float, values)), label, what, path, line, is_disturbed=is_disturbed)
            if values and what in COLUMN_OF_UNIT.values():
                yield Entry((float(values[0]),), label, what, path, line, row.get("commit", ""))


def _of_markdown(path: Path) -> Iterator[Entry]:
    header: list[str] = []
    heading = ""
    lines = path.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines, start=1):
        cells = [cell.strip() for cell in line.split("|")[1:-1]] if line.startswith("|") else []
        if cells and re.match(r"\|[ :]?-", lines[number]):
            header = cells
        heading = line.lstrip("#").strip() if line.startswith("#") else heading
        label = ", ".join(filter(None, (heading, *(cell for cell in cells if not INTERVAL.search(cell)))))
        for place, cell in enumerate(cells or [line]):
            # what a sentence says, whatever its numbers
            what = header[place] if cells and place < len(header) else re.sub(NUMBER, "#", line.strip())[:80]
            for found in INTERVAL.finditer(cell):
                numbers, is_disturbed = tuple(map(_value, found.groups())), cell[found.end() :].startswith(DISTURBED)
                yield Entry(numbers, label, what, path, number, "", is_disturbed, found.groups())


def _value(text: str) -> float:
    return float(text.replace(",", "").replace("−", "-"))


def _factor(quote: Quote, entry: Entry) -> int | None:
    """By what a number of a table, rounded, is what the page shows; None where it is another one.

    Shares of a CSV file are percent on pages, and a sign is that of a difference, which no CSV file has.
    """
    if len(quote.numbers) != len(entry.numbers) or (quote.unit and COLUMN_OF_UNIT[quote.unit] != entry.what):
        return None
    if quote.numbers[0].startswith("+") and entry.file.suffix == ".csv":
        return None
    pairs = [(_value(text), number, 0.50001 * 10.0 ** -len(text.partition(".")[2]))
             for text, number in zip(quote.numbers, entry.numbers, strict=True)]  # fmt: skip
    factors = (1, 100) if entry.file.suffix == ".csv" and not quote.unit else (1,)
    matching = (each for each in factors if all(abs(shown - each * number) <= half for shown, number, half in pairs))
    return next(matching, None)


def _likeness(quote: Quote, entry: Entry) -> tuple[bool, int, int]:
    words = _words(f"{entry.name} {entry.what} {entry.file.parent.name}")
    return entry.file.suffix == ".csv", len(words & quote.near), len(words & quote.section)


def _unit(what: str) -> str:
    """Of a column of cells.csv, or what stands in brackets at the end of a heading."""
    in_brackets = re.search(r"\(([^()]+)\)$", what)
    return in_brackets[1] if in_brackets else UNITS.get(re.sub(r"(?<=_per_pos_)\d+$", PER_POSITION, what), "")


def _provenance(file: Path, root: Path) -> dict[str, str]:
    """Command, commit and machine of a table; empty where only its text names them."""
    found = dict.fromkeys(PROVENANCE, "")
    if file.name in NOTES:
        return found
    inside = [path for path in file.parents if path.is_relative_to(root / "results")][:-1]
    names = ("report.md", "tables/settings.md", "*.json")
    others = [path for folder in inside for name in names for path in sorted(folder.glob(name))]
    for path in ([file] if file.suffix == ".md" else []) + others:
        text = path.read_text(encoding="utf-8")
        for name, pattern in PROVENANCE.items():
            matches = ("".join(match) if isinstance(match, tuple) else match for match in re.findall(pattern, text))
            found[name] = found[name] or "; ".join(dict.fromkeys(matches))
    return found


def main(arguments: Sequence[str] | None = None, root: Path = Path()) -> int:
    """Write pages and index, or tell what differs; returns the exit code."""
    parser = argparse.ArgumentParser("harness.report.quoted", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if something would change")
    options = parser.parse_args(arguments)
    try:
        found = written(root)
    except UnknownQuoteError as error:
        print(error, file=sys.stderr)
        return 1
    is_changed = not (root / INDEX).is_file() or (root / INDEX).read_text(encoding="utf-8") != found.index
    print(*found.changes, *[f"{INDEX} changes"] * is_changed, sep="\n", end="\n" if found.changes or is_changed else "")
    if options.check:
        if found.pages or is_changed:
            print("run: python -m harness.report.quoted", file=sys.stderr)
        return int(bool(found.pages) or is_changed)
    for page, text in found.pages.items():
        (root / page).write_text(text, encoding="utf-8")
    (root / INDEX).write_text(found.index, encoding="utf-8")
    if found.changes:
        print("read the sentences around these numbers: their words stay as they are", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
