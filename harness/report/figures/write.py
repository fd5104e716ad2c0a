"""Draws every figure that some cells allow, and writes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.metrics.cell import Cell
from harness.metrics.estimates import Estimate
from harness.report.figures.kinds import FIGURES, FigureKind
from harness.report.figures.save import save_figure
from harness.report.figures.sheet import sheet_of
from harness.report.figures.style import RC


class Drawn(NamedTuple):
    """A figure that was written."""

    kind: FigureKind
    path: Path
    """Of the first format."""
    labels: tuple[str, ...]
    """Of the cells in it."""


def write_figures(
    cells: Sequence[Cell],
    folder: Path,
    formats: Sequence[str] = ("png",),
    distances: Mapping[str, Estimate] | None = None,
) -> list[Drawn]:
    """Draw every figure the cells allow and write it to `folder`.

    Args:
        cells: the cells of a report; those without a drafter are drawn as the line at speedup 1 only.
        formats: file types that matplotlib can write, such as png and pdf.
        distances: from the target's distribution, by cell id, of the cells that recorded theirs.
    """
    import matplotlib as mpl

    drawn = []
    for kind in FIGURES:
        sheet = sheet_of(cells, kind.along, distances)
        if sheet is None:
            continue
        with mpl.rc_context(RC):
            figure = kind.draw(sheet)
            if figure is None:
                continue
            folder.mkdir(parents=True, exist_ok=True)
            for suffix in formats:
                save_figure(figure, folder / f"{kind.name}.{suffix}")
            labels = tuple(sheet.narrowed(kind.axes).labels)
            drawn.append(Drawn(kind, folder / f"{kind.name}.{formats[0]}", labels))
    return drawn
