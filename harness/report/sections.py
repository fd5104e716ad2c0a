"""The tables of a report, in order. A new one: a function that makes it from results, and an entry here.

A kind without anything to show returns no table; it then has no file either. What each table shows is in a file of its
own in tables/.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from harness.analysis.comparison import comparisons_frame
from harness.analysis.results import Results
from harness.report.latex import to_latex
from harness.report.table import Table
from harness.report.tables.concurrency import concurrency_tables
from harness.report.tables.depth import depth_tables
from harness.report.tables.depth_choice import depth_choice_tables
from harness.report.tables.draft_dtype import draft_dtype_tables
from harness.report.tables.drafting import drafting_tables
from harness.report.tables.engines import engine_tables
from harness.report.tables.fastest import fastest_tables
from harness.report.tables.lossy import lossy_tables
from harness.report.tables.methods import method_tables, paired_table
from harness.report.tables.partings import partings_tables
from harness.report.tables.prompt_axes import CATEGORY, CONTEXT_LENGTH, category_tables, context_length_tables
from harness.report.tables.reasoning import reasoning_table
from harness.report.tables.repeats import repeats_tables
from harness.report.tables.summary import summary_table
from harness.report.tables.task_accuracy import TITLE as TASK_TITLE
from harness.report.tables.task_accuracy import task_accuracy_tables
from harness.report.tables.tree_children import TITLE as TREE_CHILDREN
from harness.report.tables.tree_children import tree_children_tables


def answer_tables(results: Results) -> list[Table]:
    """Engines, repeats, what is fastest, depths, where speculation pays, drafting by verification, lossy, caches: where
    they vary."""
    left_out = [item for run in results.runs for item in run.manifest.get("skipped", [])]
    skipped = [(item.get("cell") or {}, str(item.get("reason"))) for item in left_out]
    cells, recorded = results.cells, results.recording.cells
    tables = [*engine_tables(cells), *repeats_tables(cells), *fastest_tables(cells), *depth_tables(cells)]
    tables += depth_choice_tables(cells, recorded)
    tables += concurrency_tables(cells)
    tables += drafting_tables(cells, skipped)
    tables += lossy_tables(cells, recorded, references(results))
    return [*tables, *draft_dtype_tables(cells, recorded)]


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


TABLES: tuple[TableKind, ...] = (
    TableKind("answers", "Answers", answer_tables, files=r".+\.csv", is_on_page=True),
    TableKind("summary", "All cells", lambda results: [summary_table(results.cells)], is_on_page=True),
    TableKind("right_answers", TASK_TITLE, lambda results: task_accuracy_tables(results.cells), is_on_page=True),
    TableKind(
        "boundary",
        "The end of reasoning",
        lambda results: [table for table in [reasoning_table(results.cells)] if table is not None],
        is_on_page=True,
    ),
    TableKind("category", CATEGORY.title, lambda results: category_tables(results.cells)),
    TableKind(
        "context_length", CONTEXT_LENGTH.title, lambda results: context_length_tables(results.cells), is_on_page=True
    ),
    TableKind("tree_children", TREE_CHILDREN, lambda results: tree_children_tables(results.cells)),
    TableKind(
        "methods",
        "Methods side by side",
        lambda results: method_tables(results.cells, references(results)),
        files=r".+-K-\d+-T-\d.*\.csv",
    ),
    TableKind(
        "paired",
        "Paired differences",
        lambda results: [paired_table(results.cells), *partings_tables(results.cells, results.partings)],
        frame=lambda results: comparisons_frame(results.cells),
        without="No two cells of these results can be compared in pairs.",
    ),
)
OWN_TABLES = {
    "tables": re.compile(rf"cells\.csv|settings\.md|({'|'.join(kind.name for kind in TABLES)})\.(csv|md|tex)"),
    **{f"tables/{kind.name}": re.compile(kind.files) for kind in TABLES if kind.files},
}
"""Folder -> names of the files that a report may have written there."""


def make_tables(results: Results) -> list[MadeTables]:
    """Every kind of table for some results, those without any too."""
    return [MadeTables(kind, tuple(kind.tables(results))) for kind in TABLES]


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
