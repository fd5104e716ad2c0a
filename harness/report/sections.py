"""The tables of a report, in order. A new one: a module with its `TableKind`, and its name here.

A kind without anything to show returns no table; it then has no file either. This module imports no table before the
kinds are asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import pandas as pd

from harness.analysis.results import Results
from harness.config.imported import ImportPath
from harness.report.latex import to_latex
from harness.report.table import Table

TABLES = {
    "answers": "harness.report.tables.answers:ANSWERS",
    "summary": "harness.report.tables.summary:SUMMARY",
    "right_answers": "harness.report.tables.task_accuracy:RIGHT_ANSWERS",
    "boundary": "harness.report.tables.reasoning:BOUNDARY",
    "category": "harness.report.tables.prompt_axes:CATEGORY",
    "context_length": "harness.report.tables.prompt_axes:CONTEXT_LENGTH",
    "tree_children": "harness.report.tables.tree_children:TREE_CHILDREN",
    "methods": "harness.report.tables.methods:METHODS",
    "paired": "harness.report.tables.methods:PAIRED",
}
"""Name -> PACKAGE.MODULE:OBJECT of a `TableKind` of that name."""


def references(results: Results) -> dict[str, str | None]:
    """The method that the others are compared with, by run; None is the first."""
    return {run.name: run.manifest.get("reference") for run in results.runs}


@dataclass(frozen=True)
class TableKind:
    """A kind of table."""

    name: str
    """Of its files."""
    title: str
    """Heading of its section."""
    tables: Callable[[Results], Sequence[Table]]
    frame: Callable[[Results], pd.DataFrame] | None = None
    """The same with all digits, for its CSV file; None writes the table as printed."""
    files: str = ""
    """Pattern of the names of its CSV files, where it has a folder of them; empty where it is one table."""
    without: str = ""
    """What the section says where no table has a row; empty leaves the section out."""
    is_on_page: bool = False
    """Whether the page shows it where it is short, and does not only link it."""

    @property
    def file(self) -> str:
        """Its tables with what their words mean."""
        return f"tables/{self.name}.md"


@dataclass(frozen=True)
class MadeTables:
    """The tables of one kind for some results."""

    kind: TableKind
    tables: tuple[Table, ...]
    """All of them get files."""

    @property
    def shown(self) -> tuple[Table, ...]:
        """Those that have something for a page."""
        return tuple(table for table in self.tables if table.rows)


@cache
def table_kinds() -> tuple[TableKind, ...]:
    """Every kind of table, in order."""
    kinds = []
    for name, path in TABLES.items():
        kind: TableKind = ImportPath(path).load("tables", TableKind)
        assert kind.name == name, f"{path} is called {kind.name}, not {name}"
        kinds.append(kind)
    return tuple(kinds)


def own_tables() -> dict[str, re.Pattern[str]]:
    """Folder -> names of the files that a report may have written there."""
    return {
        "tables": re.compile(rf"cells\.csv|settings\.md|({'|'.join(TABLES)})\.(csv|md|tex)"),
        **{f"tables/{kind.name}": re.compile(kind.files) for kind in table_kinds() if kind.files},
    }


def make_tables(results: Results) -> list[MadeTables]:
    """Every kind of table for some results, those without any too."""
    return [MadeTables(kind, tuple(kind.tables(results))) for kind in table_kinds()]


def table_files(made: MadeTables, results: Results) -> dict[str, str]:
    """Path below the report's folder -> text, of one kind of table: CSV, Markdown and LaTeX."""
    kind, tables = made.kind, made.tables
    if not tables:
        return {}
    files = {
        kind.file: "\n".join(table.to_markdown() for table in tables),
        f"tables/{kind.name}.tex": "\n".join(to_latex(table) for table in tables),
    }
    if kind.frame is not None:
        files[f"tables/{kind.name}.csv"] = kind.frame(results).to_csv(index=False, lineterminator="\n")
    elif not kind.files:
        (table,) = tables
        files[f"tables/{kind.name}.csv"] = table.to_csv()
    else:
        files |= _numbered(f"tables/{kind.name}", tables)
    return files


def _numbered(folder: str, tables: Sequence[Table]) -> dict[str, str]:
    """A CSV file for each table, numbered where titles are the same."""
    files: dict[str, str] = {}
    for table in tables:
        stem = f"{folder}/{file_name(table.title)}"
        number = sum(name.startswith((f"{stem}.csv", f"{stem}--")) for name in files)
        files[f"{stem}--{number + 1}.csv" if number else f"{stem}.csv"] = table.to_csv()
    return files


def file_name(title: str) -> str:
    """A title as the name of a file."""
    words = "".join(letter if letter.isalnum() or letter in "._" else " " for letter in title).split()
    return "-".join(words)
