"""The documents of a run's report: the page that is read in five minutes, the whole, and the settings.

The page, report.md, holds the first screen, warnings, figures and the short tables, and links everything else. The HTML
page holds everything.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.analysis.results import Results
from harness.config.usage import used_settings
from harness.records.runs import Run
from harness.report.cell_names import ASSUMED, TIMES, label_notes, layer_notes
from harness.report.document import Document, Picture, Section, values_table
from harness.report.figures.write import Drawn
from harness.report.first_screen import TITLE, FirstScreen
from harness.report.run_comparison import RunComparison
from harness.report.sections import MadeTables, references
from harness.report.tables.lossy import distances
from harness.report.warnings import warnings

MAX_PAGE_ROWS = 100
"""Rows of all tables on the page together: a longer table is linked."""
ABOUT = "This run"
TEXTS = {"shows": "What this shows", "does_not_show": "What it does not show"}
"""Name in the manifest of a run -> heading."""
SETTINGS_FILE = "tables/settings.md"
SETTINGS_NOTE = (
    "Settings that no cell uses are left out; where only some cells use one, as the baseline uses none of drafting and "
    "verification, the values are theirs. –: not set (null)."
)


def run_page(results: Results, made: Sequence[MadeTables], figures: Sequence[Drawn]) -> Document:
    """The answers and the methods by position, figures, warnings, short tables, and links to the rest."""
    sections = _beginning(results, figures, with_notes=False)
    rows_left = MAX_PAGE_ROWS
    for item in made:
        if item.kind.is_on_page and item.shown:
            sections.append(_on_page(item, rows_left))
            rows_left -= sum(len(table.rows) for table in sections[-1].tables)
    behind = [item for item in made if item.shown and not item.kind.is_on_page]
    links = [
        *(f"[{item.kind.title}]({item.kind.file}): {_size(item)}" for item in behind),
        f"[Settings and provenance]({SETTINGS_FILE})",
        "[All metrics of all cells](tables/cells.csv), with every digit; what the columns mean: "
        "`rejection-lab report --columns`",
        "What the words mean stands below the tables in tables/*.md. `rejection-lab report FOLDER --html` "
        "writes everything on one page that sorts.",
    ]
    return _document(results, [*sections, Section("More", items=tuple(links))])


def whole_report(
    results: Results, made: Sequence[MadeTables], figures: Sequence[Drawn], comparison: RunComparison | None = None
) -> Document:
    """Everything.

    Args:
        comparison: of the two runs of the results.
    """
    sections = []
    if comparison is not None:
        found = tuple(comparison.warnings)
        sections.append(Section(comparison.title, items=found, tables=comparison.tables, is_warning=True))
    sections += _beginning(results, figures, with_notes=True)
    sections += [_whole_section(item) for item in made if item.shown or item.kind.without]
    return _document(results, [*sections, _settings(results)], with_provenance=True)


def settings_page(results: Results) -> Document:
    """The settings and the provenance of all cells."""
    return Document("Settings and provenance", sections=(_settings(results),), provenance=_provenance(results))


def figure_caption(figure: Drawn) -> str:
    """What a figure shows, the labels of the cells in it, and what it leaves out."""
    labels = f" (cells labelled {', '.join(figure.labels)})" if figure.labels else ""
    left_out = f"; not drawn: {figure.left_out}" if figure.left_out else ""
    return f"{figure.kind.text}, with intervals{labels}{left_out}"


def _beginning(results: Results, figures: Sequence[Drawn], *, with_notes: bool) -> list[Section]:
    """The answers, the figures, what a reader must know, and what the run is."""
    found = _warnings(results)
    return [*_first_screen(results, found, with_notes=with_notes), *_figures(figures), *found, *_about(results)]


def _document(results: Results, sections: Sequence[Section], *, with_provenance: bool = False) -> Document:
    provenance = _provenance(results) if with_provenance else []
    return Document(results.title, sections=tuple(sections), provenance=provenance)


def _about(results: Results) -> list[Section]:
    """What a run shows, when it was started, and how."""
    paragraphs = tuple(dict.fromkeys(text for run in results.runs for text in _texts(run)))
    facts = [fact for run in results.runs for fact in _facts(run)]
    layers = layer_notes(results.cells)
    facts += [("Layers", " ".join(layers))] if layers else []
    items = tuple(f"{name}: {text}" for name, text in facts)
    return [Section(ABOUT, paragraphs, items)] if paragraphs or items else []


def _facts(run: Run) -> Iterator[tuple[str, str]]:
    """How much of a run there is, when it was started, and how."""
    num_planned = int(run.manifest.get("num_cells", len(run.cells) + len(run.missing)))
    duration_s = sum(cell.wall_s for cell in run.cells)
    beside_s = sum(cell.beside_s for cell in run.cells)
    beside = "" if math.isnan(beside_s) else f", {beside_s:.1f} s beside the clock"
    num_failed = sum(cell.has_failed for cell in run.cells)
    failed = f", {num_failed} failed" if num_failed else ""
    num_done = len(run.cells) - num_failed
    yield "Run", f"`{run.name}`, {num_done} of {num_planned} cells{failed}, {duration_s:.1f} s measured{beside}"
    if run.manifest.get("started"):
        yield "Started", str(run.manifest["started"])
    if run.manifest.get("command"):
        yield "Command", f"`{run.manifest['command']}`"


def _texts(run: Run) -> Iterator[str]:
    """What the experiment says about itself."""
    for name, heading in TEXTS.items():
        value = run.manifest.get(name) or []
        paragraphs = [" ".join(str(item).split()) for item in (value if isinstance(value, list) else [value])]
        yield from (f"{heading}: {text}" if index == 0 else text for index, text in enumerate(filter(None, paragraphs)))


def _first_screen(results: Results, behind: Sequence[Section], *, with_notes: bool) -> list[Section]:
    if not results.cells:
        return []
    screen = FirstScreen(tuple(results.cells), references(results), distances(results))
    tables = screen.tables if with_notes else [replace(table, notes=()) for table in screen.tables]
    num_warnings = sum(len(section.items) for section in behind)
    told = f"Warnings: {num_warnings}, below the figures." if num_warnings else ""
    paragraphs = tuple(filter(None, (screen.shared, screen.reading, told)))
    below = (*screen.not_answered, *screen.below)
    return [Section(TITLE, paragraphs, entries=tuple(screen.answers), tables=tuple(tables), below=below)]


def _warnings(results: Results) -> list[Section]:
    # the warnings say for which cells
    notes = (note for note in label_notes(results.cells) if not note.startswith((TIMES, ASSUMED)))
    found = (*warnings(results), *notes)
    return [Section("Warnings", items=found, is_warning=True)] if found else []


def _on_page(made: MadeTables, rows_left: int) -> Section:
    """The tables of a kind that have room on the page, and links to the others."""
    tables, links = [], []
    for table in made.shown:
        if len(table.rows) <= rows_left:
            tables.append(replace(table, notes=()))
            rows_left -= len(table.rows)
        else:
            links.append(f"[{table.title}]({made.kind.file}): {len(table.rows)} rows")
    return Section(made.kind.title, items=tuple(links), tables=tuple(tables))


def _size(made: MadeTables) -> str:
    num_rows = sum(len(table.rows) for table in made.shown)
    return f"{len(made.shown)} tables" if len(made.shown) > 1 else f"{num_rows} rows"


def _whole_section(made: MadeTables) -> Section:
    return Section(made.kind.title, () if made.shown else (made.kind.without,), tables=made.shown)


def _figures(figures: Sequence[Drawn]) -> list[Section]:
    pictures = tuple(Picture(figure.path, figure_caption(figure)) for figure in figures)
    return [Section("Figures", pictures=pictures)] if figures else []


def _settings(results: Results) -> Section:
    settings = [used_settings(cell.record.config) for cell in results.cells]
    return Section("Settings", (SETTINGS_NOTE,), tables=(values_table(settings),))


def _provenance(results: Results) -> list[Mapping[str, Any]]:
    return [item for cell in results.cells for item in cell.record.provenances]
