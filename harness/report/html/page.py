"""A document as one page of HTML: tables that sort, figures, definitions, provenance.

Everything is in the page, and its content security policy forbids the browser to fetch anything or to run any script
but the page's own. Names, labels, settings and prompt ids come from outside and are escaped by the template.
This module does not know what a document is about.
"""

from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING

from harness.report.figures.style import DPI
from harness.report.html.table_view import TableView, table_view

if TYPE_CHECKING:
    from markupsafe import Markup

    from harness.report.document import Document, Picture, Section

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
class SectionView:
    anchor: str
    title: str
    paragraphs: tuple[str, ...]
    items: tuple[str, ...]
    is_warning: bool
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


def _prose(text: str) -> Markup:
    """A text with its code, everything escaped."""
    from markupsafe import Markup, escape

    from harness.report.document import spans

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
    figures = tuple(map(_figure_view, section.pictures))
    return SectionView(
        anchor, section.title, section.paragraphs, section.items, section.is_warning, tuple(tables), figures
    )


def _figure_view(picture: Picture) -> FigureView:
    content = picture.path.read_bytes()
    assert content.startswith(b"\x89PNG"), "the page embeds PNG files"
    width, height = (int.from_bytes(content[start : start + 4], "big") for start in (16, 20))
    scale = CSS_PIXELS_PER_INCH / DPI
    source = f"data:image/png;base64,{b64encode(content).decode()}"
    return FigureView(source, picture.caption, round(width * scale), round(height * scale))
