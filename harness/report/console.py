"""The first screen of a report for a terminal of 100 columns, what else a run must tell at once, and any table.

rich is imported when something is shown. This module knows where text stands; what it says is elsewhere.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from textwrap import fill
from typing import IO, TYPE_CHECKING

from harness.analysis.cell import CellResult
from harness.analysis.estimates import Estimate
from harness.analysis.results import Results
from harness.report.cell_names import DISTURBED_NOTE, TREE_NOTES, label_notes
from harness.report.document import Document
from harness.report.first_screen import TITLE, FirstScreen
from harness.report.loop_notes import LOOPS_NOTE
from harness.report.sections import references
from harness.report.table import Table
from harness.report.tables.engines import engine_lines
from harness.report.tables.lossy import distances as recorded_distances
from harness.report.tables.reasoning import reasoning_lines
from harness.report.tables.repeats import repeats_tables
from harness.report.tables.task_accuracy import task_lines
from harness.report.text_table import text_lines

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 100
"""Where standard output is not a terminal."""
NO_BREAK = "\N{NO-BREAK SPACE}"
_INTERVAL = re.compile(r"\[[^\[\]]*\]")
DEFINITIONS = "Definitions: tables/methods.md."


def print_results(results: Results, stream: IO[str] | None = None) -> None:
    """Print the first screen of some results."""
    print_summary(results.cells, stream, references(results), recorded_distances(results))


def print_summary(
    cells: Sequence[CellResult],
    stream: IO[str] | None = None,
    references: Mapping[str, str | None] | None = None,
    distances: Mapping[str, Estimate] | None = None,
) -> None:
    """Print the first screen of some cells.

    Args:
        cells: at least one.
        stream: where to; None is standard output.
        references: run -> method that the others are compared with; where there is none, the first.
        distances: cell id -> its distance from the target, of cells that recorded it.
    """
    console, screen = _console(stream), FirstScreen(tuple(cells), references or {}, distances or {})
    console.print(TITLE, style="bold", markup=False)
    _print_lines(console, [*filter(None, [screen.shared]), screen.reading], "dim")
    for answer in screen.answers:
        _print_lines(console, [answer.title], "bold cyan")
        _print_lines(console, answer.sentences, "cyan", indent="  ")
    _print_lines(console, screen.not_answered, "cyan")
    for block in screen.in_full:
        for table in screen.tables_of(block):
            _print_table(console, table)
    _print_lines(console, [*task_lines(cells), *reasoning_lines(cells)], "cyan")
    for table in repeats_tables(cells):
        # its brackets are not those of the other tables
        _print_table(console, table)
        _print_lines(console, table.notes[:1], "dim")
    _print_lines(console, engine_lines(cells), "cyan")
    notes = [note for note in label_notes(cells) if note not in (*TREE_NOTES, DISTURBED_NOTE, LOOPS_NOTE)]
    console.print()
    _print_lines(console, [*screen.below, *notes, DEFINITIONS], "dim")


def _console(stream: IO[str] | None) -> Console:
    from rich.console import Console

    stream = sys.stdout if stream is None else stream
    console = Console(file=stream, highlight=False)
    return console if console.is_terminal else Console(file=stream, highlight=False, width=WIDTH)


def _print_lines(console: Console, lines: Sequence[str], style: str, indent: str = "") -> None:
    for line in lines:
        # backticks mark code in a page; intervals stay whole
        text = _INTERVAL.sub(lambda found: found.group().replace(" ", NO_BREAK), line.replace("`", ""))
        text = fill(
            text, console.width, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False
        ).replace(NO_BREAK, " ")
        console.print(text, style=style, markup=False, highlight=False)


def print_table(table: Table) -> None:
    """Print a table."""
    _print_table(_console(None), table)


def print_document(document: Document, stream: IO[str] | None = None) -> None:
    """Print a document: its sections with their tables and lists, without its pictures."""
    console = _console(stream)
    for section in document.all_sections:
        console.print()
        console.print(section.title, style="bold cyan", markup=False)
        _print_lines(console, section.paragraphs, "")
        for table in section.tables:
            _print_table(console, table if section.has_heading(table) else replace(table, title=""))
        _print_lines(console, section.items, "dim", indent="  ")
        _print_lines(console, section.below, "dim", indent="  ")


def _print_table(console: Console, table: Table) -> None:
    console.print()
    if table.title:
        console.print(table.title, style="bold", markup=False)
    for line in text_lines(table, console.width):
        # a single column that is too wide, as a long name, is cut by the terminal
        console.print(line, markup=False, highlight=False, no_wrap=True, crop=False, overflow="ignore")
