"""A document as one page of HTML: tables that sort, figures, definitions, provenance.

Everything is in the page, and its content security policy forbids the browser to fetch anything or to run any script
but the page's own. Names, labels, settings and prompt ids come from outside and are escaped by the template.
This module does not know what a document is about.
"""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

from harness.report.figures.style import DPI
from harness.report.number_format import Number
from harness.report.table import Entry, Table, is_missing

if TYPE_CHECKING:
    from markupsafe import Markup

    from harness.report.document import Document, Picture, Section


class CellView(NamedTuple):
    text: str
    """As printed, without the interval."""
    interval: str
    """In brackets, or empty; with the note that follows it."""
    sort_key: str
    """What the cell sorts by: a number in a column of numbers, text elsewhere; empty where there is none."""


class TableView(NamedTuple):
    """A table as the page shows it: every entry with the key it sorts by, values told apart from intervals."""

    anchor: str
    table: Table
    has_heading: bool
    """Whether its title stands above it; otherwise that of its section does."""
    columns: tuple[tuple[str, str], ...]
    """(label, number or text)."""
    rows: tuple[tuple[CellView, ...], ...]


def table_view(table: Table, anchor: str, *, has_heading: bool = True) -> TableView:
    """A table for the page.

    Args:
        anchor: name of its place in the page; a letter first, then letters, digits and dashes.
    """
    table = table.compact
    numeric = [table.is_number_column(index) for index in range(len(table.header))]
    columns = zip(table.header, ("number" if is_number else "text" for is_number in numeric), strict=True)
    rows = [tuple(_cell(entry, is_number) for entry, is_number in zip(row, numeric, strict=True)) for row in table.rows]
    return TableView(anchor, table, has_heading, tuple(columns), tuple(rows))


def _cell(entry: Entry, is_number: bool) -> CellView:
    text = str(entry)
    if not isinstance(entry, Number) or entry.is_missing:
        return CellView(text, "", "" if is_missing(entry) else text)
    value = f"{entry.sign} {entry.value_text}".strip()
    return CellView(value, text[len(value) :].strip(), repr(float(entry.value)) if is_number else text)


CSS_PIXELS_PER_INCH = 96


class FigureView(NamedTuple):
    source: str
    """data: URI."""
    caption: str
    width: int
    """In CSS pixels."""
    height: int


class SectionView(NamedTuple):
    section: Section
    anchor: str
    tables: tuple[TableView, ...]
    figures: tuple[FigureView, ...]


def html_page(document: Document) -> str:
    """The page as text; the document's figures are PNG files."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    style, script, template = (_own_file(name) for name in ("page.css", "page.js", "page.html.j2"))
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    return environment.from_string(template).render(
        title=document.title,
        policy=_policy(style, script),
        style=Markup(style),
        script=Markup(script),
        facts=document.facts,
        paragraphs=document.paragraphs,
        sections=[_section(item, number) for number, item in enumerate(document.all_sections, start=1)],
        prose=_prose,
    )


_INTERVAL = re.compile(r"\[[-+\d.,]+, [-+\d.,]+\]")


def _prose(text: str) -> Markup:
    """A text with its code, everything escaped; intervals stay on one line."""
    from markupsafe import Markup, escape

    from harness.report.document import spans

    text = _INTERVAL.sub(lambda found: found[0].replace(" ", "\N{NO-BREAK SPACE}"), text)
    parts = (Markup("<code>{}</code>").format(part) if is_code else escape(part) for part, is_code in spans(text))
    return Markup("").join(parts)


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


def _section(section: Section, number: int) -> SectionView:
    anchor = f"section-{number}-{re.sub('[^a-z0-9]+', '-', section.title.lower()).strip('-')}".rstrip("-")
    tables = [
        table_view(table, f"table-{number}-{index}", has_heading=section.has_heading(table))
        for index, table in enumerate(section.tables, start=1)
    ]
    return SectionView(section, anchor, tuple(tables), tuple(map(_figure_view, section.pictures)))


def _figure_view(picture: Picture) -> FigureView:
    content = picture.path.read_bytes()
    assert content.startswith(b"\x89PNG"), "the page embeds PNG files"
    width, height = (int.from_bytes(content[start : start + 4], "big") for start in (16, 20))
    scale = CSS_PIXELS_PER_INCH / DPI
    source = f"data:image/png;base64,{b64encode(content).decode()}"
    return FigureView(source, picture.caption, round(width * scale), round(height * scale))
