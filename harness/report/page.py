"""report.md: the tables, the figures, the settings and the provenance of some results on one page.

The same as a page of HTML: `harness.report.html`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.metrics.flat_settings import value_rows
from harness.metrics.results import Results
from harness.report.figures.write import Drawn
from harness.report.run_summary import RunSummary, run_summary
from harness.report.sections import MadeTables
from harness.report.warnings import warnings
from harness.settings.usage import used_settings

SETTINGS_NOTE = (
    "Settings that no cell uses are left out; where only some cells use one, as the baseline uses none of drafting and "
    "verification, the values are theirs. –: not set (null)."
)


def report_page(results: Results, made: Sequence[MadeTables], figures: Sequence[Drawn]) -> str:
    """The text of report.md."""
    return "\n".join(_lines(results, made, figures))


def _lines(results: Results, made: Sequence[MadeTables], figures: Sequence[Drawn]) -> Iterator[str]:
    yield f"# {results.title}\n"
    for run in results.runs:
        yield from _run_lines(run_summary(run))
    yield from _remarks(results)
    for item in made:
        if item.kind.before_figures:
            yield from _section(item)
    yield "\n## Figures\n"
    for figure in figures:
        yield f"{figure_caption(figure)}:\n\n![{figure.kind.text}](figures/{figure.path.name})\n"
    for item in made:
        if not item.kind.before_figures:
            yield from _section(item)
    yield "\n## Settings\n"
    yield f"{SETTINGS_NOTE}\n"
    yield from _value_lines([used_settings(cell.record.config) for cell in results.cells])
    yield "\n## Provenance\n"
    yield from _value_lines([cell.record.provenance for cell in results.cells])
    yield "\nColumns of tables/cells.csv: `rejection-lab report --columns`.\n"


def figure_caption(figure: Drawn) -> str:
    """What a figure shows, and the labels of the cells in it."""
    labels = f" (cells labelled {', '.join(figure.labels)})" if figure.labels else ""
    place = f"; {figure.place}" if figure.place else ""
    return f"{figure.kind.text}, with intervals{labels}{place}"


def _section(made: MadeTables) -> Iterator[str]:
    """One kind of table; the title of a single one stands as the heading."""
    if not made.shown and not made.kind.without:
        return
    yield f"\n## {made.kind.title}\n"
    if not made.shown:
        yield f"{made.kind.without}\n"
    for table in made.shown:
        yield table.to_markdown(title=table.title != made.kind.title)


def _run_lines(run: RunSummary) -> Iterator[str]:
    yield f"- run `{run.name}`: {run.num_cells} of {run.num_planned} cells, {run.duration_s:.1f} s measured"
    if run.started:
        yield f"  - started {run.started}"
    if run.command:
        yield f"  - command: `{run.command}`"
    for heading, paragraphs in run.texts:
        yield f"\n**{heading}.** " + "\n\n".join(paragraphs) + "\n"


def _remarks(results: Results) -> Iterator[str]:
    found = warnings(results)
    if found:
        yield "\n## Remarks\n"
        yield from (f"- {line}" for line in found)


def _value_lines(mappings: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "| name | value |\n| --- | --- |"
    for name, text in value_rows(mappings):
        yield f"| {name} | {text.replace('|', chr(92) + '|')} |"
