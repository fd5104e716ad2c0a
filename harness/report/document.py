"""A document of any tool: paragraphs, tables and figures first, then how to read it and where it comes from.

It becomes Markdown, a page of HTML and LaTeX. Text between backticks is code. This module does not know what a document
is about.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.analysis.flat_settings import value_rows
from harness.report.files import write_files
from harness.report.latex import PREAMBLE, escape, float_lines
from harness.report.table import Table

DEFINITIONS, PROVENANCE = "How to read it", "Where it comes from"


@dataclass(frozen=True)
class Picture:
    """A figure that was written."""

    path: Path
    caption: str


@dataclass(frozen=True)
class Section:
    """A part of a document under a heading."""

    title: str
    paragraphs: tuple[str, ...] = ()
    items: tuple[str, ...] = ()
    """A list."""
    entries: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Names, and sentences about each."""
    tables: tuple[Table, ...] = ()
    pictures: tuple[Picture, ...] = ()
    is_warning: bool = False
    """Whether a page sets its list apart."""
    below: tuple[str, ...] = ()
    """A list below the tables: what marks mean, what is left out."""

    def has_heading(self, table: Table) -> bool:
        """Whether a table of it needs a heading beside that of the section."""
        return table.title not in ("", self.title)


@dataclass(frozen=True)
class Document:
    """What a tool found, in the order in which it is read."""

    title: str
    facts: tuple[tuple[str, str], ...] = ()
    """(name, text), such as the command."""
    paragraphs: tuple[str, ...] = ()
    sections: tuple[Section, ...] = ()
    definitions: tuple[str, ...] = ()
    provenance: Sequence[Mapping[str, Any]] = ()
    """Of everything that it is about; values that differ are listed."""

    @property
    def all_sections(self) -> tuple[Section, ...]:
        """The sections, the definitions and the provenance."""
        behind = [Section(DEFINITIONS, items=self.definitions)] if self.definitions else []
        if self.provenance:
            behind.append(Section(PROVENANCE, tables=(values_table(self.provenance),)))
        return (*self.sections, *behind)

    def to_markdown(self, folder: Path | None = None) -> str:
        """GitHub-flavoured Markdown.

        Args:
            folder: where it will lie, for the links to its figures.
        """
        return "\n".join(_markdown(self, folder))

    def to_latex(self, folder: Path | None = None) -> str:
        """A LaTeX document of its own."""
        return "\n".join(_latex(self, folder)) + "\n"


def values_table(mappings: Sequence[Mapping[str, Any]], title: str = "") -> Table:
    """Every value of some nested mappings by its dotted name."""
    return Table(title, ("name", "value"), tuple(value_rows(mappings)))


def write_report(document: Document, folder: Path, stem: str, beside: Mapping[str, str]) -> list[Path]:
    """Write STEM.md, STEM.html and STEM.tex for people to a folder, and beside them what programs read.

    Args:
        beside: name of a file -> its text.

    Returns:
        The paths, that of the Markdown first.
    """
    from harness.report.html.page import html_page

    texts = {
        f"{stem}.md": document.to_markdown(folder),
        f"{stem}.html": html_page(document),
        f"{stem}.tex": document.to_latex(folder),
    }
    return write_files(folder, {**texts, **beside})


def spans(text: str) -> list[tuple[str, bool]]:
    """A text in parts, each with whether it is code; a single backtick is text."""
    parts = re.split(r"`([^`]+)`", text)
    return [(part, index % 2 == 1) for index, part in enumerate(parts) if part]


def _link(picture: Picture, folder: Path | None) -> str:
    return str(picture.path if folder is None else Path(os.path.relpath(picture.path, folder)).as_posix())


def _markdown(document: Document, folder: Path | None) -> Iterator[str]:
    yield f"# {document.title}\n"
    for name, text in document.facts:
        yield f"- {name}: {text}"
    yield from ([""] if document.facts else [])
    yield from (f"{paragraph}\n" for paragraph in document.paragraphs)
    for section in document.all_sections:
        yield f"## {section.title}\n"
        yield from (f"{paragraph}\n" for paragraph in section.paragraphs)
        if section.items:
            yield "\n".join(f"- {item}" for item in section.items) + "\n"
        if section.entries:
            yield "\n".join(line for entry in section.entries for line in _markdown_entry(*entry)) + "\n"
        yield from (table.to_markdown(title=section.has_heading(table)) for table in section.tables)
        if section.below:
            yield "\n".join(f"- {item}" for item in section.below) + "\n"
        for picture in section.pictures:
            yield f"![{picture.caption}]({_link(picture, folder)})\n\n{picture.caption}.\n"


def _markdown_entry(name: str, texts: Sequence[str]) -> Iterator[str]:
    yield f"- **{name}**"
    yield from (f"  - {text}" for text in texts)


def _latex(document: Document, folder: Path | None) -> Iterator[str]:
    yield "\\documentclass{article}\n\\usepackage[T1]{fontenc}\n\\usepackage{booktabs,graphicx,rotating}"
    yield f"{PREAMBLE}\n\\begin{{document}}\n\\sloppy\n\\section*{{{escape(document.title)}}}"
    yield from _description(document.facts)
    yield from (f"{_with_code(paragraph)}\n" for paragraph in document.paragraphs)
    for section in document.sections:
        yield from _latex_section(section, folder)
    if document.definitions:
        yield from _latex_section(Section(DEFINITIONS, items=document.definitions), folder)
    if document.provenance:
        yield f"\\section*{{{PROVENANCE}}}"
        yield from _description(value_rows(document.provenance))
    yield "\\end{document}"


def _latex_section(section: Section, folder: Path | None) -> Iterator[str]:
    yield f"\\section*{{{escape(section.title)}}}"
    yield from (f"{_with_code(paragraph)}\n" for paragraph in section.paragraphs)
    yield from _latex_items(section.items)
    yield from _description([(name, " ".join(texts)) for name, texts in section.entries])
    for table in section.tables:
        # TeX keeps a few floats only
        yield "\n".join([*float_lines(table), "\\clearpage"])
    yield from _latex_items(section.below)
    for picture in section.pictures:
        file = f"\\includegraphics[width=\\linewidth]{{\\detokenize{{{_link(picture, folder)}}}}}"
        yield f"\\begin{{figure}}[p]\n{file}\n\\caption{{{escape(picture.caption)}}}\n\\end{{figure}}\n\\clearpage"


def _latex_items(texts: Sequence[str]) -> Iterator[str]:
    if texts:
        items = "\n".join(f"\\item {_with_code(item)}" for item in texts)
        yield f"\\begin{{itemize}}\n{items}\n\\end{{itemize}}"


def _description(pairs: Sequence[tuple[str, str]]) -> Iterator[str]:
    if pairs:
        items = "\n".join(f"\\item[{{{escape(name)}}}] {_with_code(text)}" for name, text in pairs)
        yield f"\\begin{{description}}\n{items}\n\\end{{description}}"


def _with_code(text: str) -> str:
    return "".join(f"\\texttt{{{escape(part)}}}" if is_code else escape(part) for part, is_code in spans(text))
