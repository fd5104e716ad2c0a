"""The report as one page of HTML: tables that sort, figures, settings, provenance, differences between two runs.

Everything is in the page, and its content security policy forbids the browser to fetch anything or to run any script
but the page's own. Names, labels, settings and prompt ids come from outside and are escaped by the template.
This module knows what stands where; what the numbers mean is elsewhere.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from typing import Any

from harness.metrics.flat_settings import value_rows
from harness.metrics.results import Results
from harness.report.figures.style import DPI
from harness.report.figures.write import Drawn
from harness.report.html.table_view import TableView, table_view
from harness.report.page import SETTINGS_NOTE, figure_caption
from harness.report.run_comparison import RunComparison
from harness.report.run_summary import run_summary
from harness.report.sections import MadeTables
from harness.report.table import Table
from harness.report.warnings import warnings
from harness.settings.usage import used_settings

CSS_PIXELS_PER_INCH = 96


@dataclass(frozen=True)
class FigureView:
    source: str
    """data: URI."""
    caption: str
    width: int
    """In CSS pixels."""
    height: int


@dataclass(frozen=True)
class Section:
    anchor: str
    title: str
    paragraphs: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    tables: tuple[TableView, ...] = ()
    figures: tuple[FigureView, ...] = ()


def html_page(
    results: Results, made: Sequence[MadeTables], figures: Sequence[Drawn], comparison: RunComparison | None = None
) -> str:
    """The page as text.

    Args:
        figures: as written, in PNG.
        comparison: of the two runs of the results.
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    style, script, template = (_own_file(name) for name in ("page.css", "page.js", "page.html.j2"))
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    return environment.from_string(template).render(
        title=results.title,
        policy=_policy(style, script),
        style=Markup(style),
        script=Markup(script),
        runs=[run_summary(run) for run in results.runs],
        sections=list(_sections(results, made, figures, comparison)),
    )


def _policy(style: str, script: str) -> str:
    """Nothing but this style, this script and images inside the page."""
    own_style, own_script = (
        f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in (style, script)
    )
    return (
        f"default-src 'none'; style-src {own_style}; script-src {own_script}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _own_file(name: str) -> str:
    return files("harness.report.html").joinpath(name).read_text(encoding="utf-8").strip()


def _sections(results: Results, made, figures, comparison: RunComparison | None) -> Iterator[Section]:
    tables = [item for item in made if item.shown or item.kind.without]
    found = warnings(results)
    if found:
        yield Section("warnings", "Warnings", warnings=tuple(found))
    if comparison is not None:
        yield _differences(comparison)
    yield from (_table_section(item) for item in tables if item.kind.before_figures)
    if figures:
        views = [_figure_view(figure, figure_caption(figure)) for figure in figures]
        yield Section("figures", "Figures", figures=tuple(views))
    yield from (_table_section(item) for item in tables if not item.kind.before_figures)
    settings = [used_settings(cell.record.config) for cell in results.cells]
    yield _values_section("settings", "Settings", settings, SETTINGS_NOTE)
    yield _values_section("provenance", "Provenance", [cell.record.provenance for cell in results.cells])


def _table_section(made: MadeTables) -> Section:
    kind = made.kind
    views = [table_view(table, f"{kind.name}-{number}") for number, table in enumerate(made.shown, start=1)]
    return Section(f"section-{kind.name}", kind.title, () if views else (kind.without,), tables=tuple(views))


def _differences(comparison: RunComparison) -> Section:
    tables = [table_view(table, f"differences-{number}") for number, table in enumerate(comparison.tables, start=1)]
    return Section("differences", comparison.title, warnings=comparison.warnings, tables=tuple(tables))


def _values_section(anchor: str, title: str, mappings: Sequence[Mapping[str, Any]], *paragraphs: str) -> Section:
    table = Table(title, ("name", "value"), tuple(value_rows(mappings)))
    return Section(f"section-{anchor}", title, paragraphs, tables=(table_view(table, anchor),))


def _figure_view(figure: Drawn, caption: str) -> FigureView:
    content = figure.path.read_bytes()
    assert content.startswith(b"\x89PNG"), "the page embeds PNG files"
    width, height = (int.from_bytes(content[start : start + 4], "big") for start in (16, 20))
    scale = CSS_PIXELS_PER_INCH / DPI
    source = f"data:image/png;base64,{b64encode(content).decode()}"
    return FigureView(source, caption, round(width * scale), round(height * scale))
