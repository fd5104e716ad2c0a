"""results/index.csv: every measured number that a page quotes, and the table, command, commit and machine behind it.

    python -m harness.report.quoted

writes it anew. A quote is a number with its interval, 1.09 [1.00, 1.19], in a section that links to folders of
results/, itself or through a section that it links to. A table there must have it, rounded to the digits that the page
shows. Of several such numbers the index names one of cells.csv if it can, and the one whose row and column share most
words with the page. A number with a unit and no interval, 25.3 us, is in the index where a CSV file there has it.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from harness.analysis.columns import PER_POSITION, SETTINGS, dictionary, with_interval
from harness.report.files import csv_text

PAGES = ("*.md", "kernels/**/*.md", "harness/**/*.md", "experiments/**/*.md", "guides/*.md", "results/*.md")
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
NOTES = ("NOTES.md", "TREES.md", "README.md")
"""Files written by hand, of several commits, which their text names."""
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
    line: int
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


def index(root: Path, pages: Mapping[str, str] | None = None) -> str:
    """The text of results/index.csv.

    Args:
        root: of the repository.
        pages: text by path from the root, in place of what these files hold.

    Raises:
        UnknownQuoteError: names page, line and number.
    """
    paths = (path for pattern in PAGES for path in sorted(root.glob(pattern)) if path.name != "CHANGELOG.md")
    texts = {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in paths} | dict(pages or {})
    pages_of: dict[Entry, list[str]] = {}
    for quote, folders in _quotes(texts):
        found = [entry for folder in folders for entry in _entries(root / folder) if _is_of(quote, entry)]
        if found:
            told = pages_of.setdefault(max(found, key=lambda entry: _likeness(quote, entry)), [])
            told += [quote.page] if quote.page not in told else []
        elif not quote.unit:
            value, low, high = quote.numbers
            raise UnknownQuoteError(
                f"{quote.page}, line {quote.line}: no table in {', '.join(folders)} has {value} [{low}, {high}]; "
                "correct the page, or link to the folder that has it"
            )
    rows = list[list[str]]()
    for entry in sorted(pages_of, key=lambda entry: (entry.file, entry.line, entry.what, entry.numbers)):
        row = dict(zip(("value", "low", "high"), (f"{number:.7g}" for number in entry.numbers), strict=False))
        row |= {"name": entry.name, "what": entry.what, "file": entry.file.relative_to(root).as_posix()}
        row |= (
            {"unit": _unit(entry.what)}
            | _provenance(entry.file, root)
            | ({"commit": entry.commit, "command": ""} if entry.commit else {})
        )
        row |= {"line": str(entry.line), "pages": " ".join(pages_of[entry])}
        rows.append([row.get(name, "") for name in COLUMNS])
    return csv_text(COLUMNS, rows)


def _quotes(texts: Mapping[str, str]) -> Iterator[tuple[Quote, list[str]]]:
    """Every quote, with the folders where it may come from."""
    sections = {(page, anchor): (line, text) for page in texts for anchor, line, text in _sections(texts[page])}
    targets = {place: [_target(place[0], link) for link in LINK.findall(text)] for place, (_, text) in sections.items()}
    for (page, anchor), (first, text) in sections.items():
        near = targets[page, anchor]
        linked = [*near, *(target for place in near for target in targets.get(place, ()))]
        parts = (path.split("/") for path, _ in linked if path.startswith("results/"))
        folders = sorted({f"results/{each[1]}" for each in parts if len(each) > 2 or "." not in each[1]})
        if folders:
            yield from ((quote, folders) for quote in _quotes_of(f"{page}#{anchor}", first, text))


def _sections(text: str) -> Iterator[tuple[str, int, str]]:
    """Anchor, first line and text of what stands below each heading."""
    line = 1
    text = FENCED.sub(lambda code: "\n" * code[0].count("\n"), text)
    for section in re.split(r"^(?=#+ )", text, flags=re.MULTILINE):
        heading = section.partition("\n")[0].lstrip("#").strip().lower()
        yield re.sub(r"[^\w\- ]", "", heading).replace(" ", "-"), line, section
        line += section.count("\n")


def _target(page: str, link: str) -> tuple[str, str]:
    """Path from the root, and anchor, that a link leads to."""
    path, _, anchor = link.partition("#")
    walked: list[str] = []
    for part in [*page.split("/")[:-1], *path.rstrip("/").split("/")] if path else page.split("/"):
        walked = walked[:-1] if part == ".." else [*walked, part]
    return "/".join(walked), anchor


def _quotes_of(page: str, first: int, text: str) -> Iterator[Quote]:
    section, header, lines = _words(text), "", text.split("\n")
    for number, line in enumerate(lines):
        if not line.startswith("|") or lines[number + 1].startswith("|-"):
            header = line if line.startswith("|") else ""
        near = _words(f"{header} {line}")
        for found in INTERVAL.finditer(line):
            yield Quote(found.groups(), "", page, first + number, near, section)
        for value, unit in WITH_UNIT.findall(line):
            yield Quote((value,), unit.removeprefix("output "), page, first + number, near, section)


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z]\w*|\d[\d.]*", text.lower().replace("-", "")))


@cache
def _entries(folder: Path) -> list[Entry]:
    """Every number of the tables in a folder."""
    tables = [entry for path in sorted(folder.rglob("*.csv")) for entry in _of_csv(path)]
    return tables + [entry for path in sorted(folder.rglob("*.md")) for entry in _of_markdown(path)]


def _of_csv(path: Path) -> Iterator[Entry]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    told = [name for name in rows[0] if name in LABELS and len({row[name] for row in rows}) > 1]
    for line, row in enumerate(rows, start=2):
        label = ", ".join(f"{name} {row[name]}" for name in told if row[name])
        for what in row:
            values = [row[name] for name in with_interval(what) if row.get(name)]
            if len(values) == 3:
                yield Entry(tuple(map(float, values)), label, what, path, line)
            if values and what in COLUMN_OF_UNIT.values():
                yield Entry((float(values[0]),), label, what, path, line, row.get("commit", ""))


def _of_markdown(path: Path) -> Iterator[Entry]:
    header: list[str] = []
    lines = path.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines, start=1):
        cells = [cell.strip() for cell in line.split("|")[1:-1]] if line.startswith("|") else []
        if cells and re.match(r"\|[ :]?-", lines[number]):
            header = cells
        label = ", ".join(cell for cell in cells if cell and not INTERVAL.search(cell))
        for place, cell in enumerate(cells or [line]):
            what = header[place] if cells and place < len(header) else line.strip()[:80]
            for found in INTERVAL.finditer(cell):
                yield Entry(tuple(map(_value, found.groups())), label, what, path, number)


def _value(text: str) -> float:
    return float(text.replace(",", "").replace("−", "-"))


def _is_of(quote: Quote, entry: Entry) -> bool:
    """Whether a number of a table, rounded, is what the page shows.

    Shares of a CSV file are percent on pages, and a sign is that of a difference, which no CSV file has.
    """
    if len(quote.numbers) != len(entry.numbers) or (quote.unit and COLUMN_OF_UNIT[quote.unit] != entry.what):
        return False
    if quote.numbers[0].startswith("+") and entry.file.suffix == ".csv":
        return False
    pairs = [(_value(text), number, 0.50001 * 10.0 ** -len(text.partition(".")[2]))
             for text, number in zip(quote.numbers, entry.numbers, strict=True)]  # fmt: skip
    factors = (1, 100) if entry.file.suffix == ".csv" and not quote.unit else (1,)
    return any(all(abs(shown - factor * number) <= half for shown, number, half in pairs) for factor in factors)


def _likeness(quote: Quote, entry: Entry) -> tuple[bool, int, int]:
    words = _words(f"{entry.name} {entry.what} {entry.file.parent.name}")
    return entry.file.suffix == ".csv", len(words & quote.near), len(words & quote.section)


def _unit(what: str) -> str:
    """Of a column of cells.csv, or what stands in brackets at the end of a heading."""
    in_brackets = re.search(r"\(([^()]+)\)$", what)
    return in_brackets[1] if in_brackets else UNITS.get(re.sub(r"(?<=_per_pos_)\d+$", PER_POSITION, what), "")


@cache
def _provenance(file: Path, root: Path) -> dict[str, str]:
    """Command, commit and machine of a table; empty where only its text names them."""
    found = dict.fromkeys(PROVENANCE, "")
    if file.name in NOTES:
        return found
    inside = [path for path in file.parents if path.is_relative_to(root / "results")][:-1]
    names = ("report.md", "tables/settings.md", "*.json")
    for path in (path for folder in inside for name in names for path in sorted(folder.glob(name))):
        text = path.read_text(encoding="utf-8")
        for name, pattern in PROVENANCE.items():
            matches = ("".join(match) if isinstance(match, tuple) else match for match in re.findall(pattern, text))
            found[name] = found[name] or "; ".join(dict.fromkeys(matches))
    return found


if __name__ == "__main__":
    INDEX.write_text(index(Path()), encoding="utf-8")
