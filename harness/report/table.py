"""A table as it is printed, and as Markdown and CSV.

As LaTeX: `harness.report.latex`, in a page: `harness.report.html`. This module knows text, not what a
table is about.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """A table as it is printed."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    """Definitions and remarks, printed below the table."""

    def to_markdown(self, *, fold_notes: bool = False) -> str:
        """GitHub-flavoured Markdown, the notes as a list below, folded away if asked."""
        lines = [f"### {self.title}", ""]
        lines += [_markdown_row(self.header), _markdown_row(["---"] * len(self.header))]
        lines += [_markdown_row(row) for row in self.rows]
        notes = ["", *(f"- {note}" for note in self.notes), ""]
        lines += ["", "<details><summary>Definitions</summary>", *notes, "</details>", ""] if fold_notes else notes
        return "\n".join(lines)

    def to_csv(self) -> str:
        """The cells as printed, with the header, without title and notes."""
        stream = io.StringIO()
        csv.writer(stream, lineterminator="\n").writerows([self.header, *self.rows])
        return stream.getvalue()


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
