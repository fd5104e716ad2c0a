"""Draws every figure that some cells allow, and writes it; knows file types, and not what is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness.analysis.cell import CellResult
from harness.analysis.estimates import Estimate
from harness.records.files import write_atomically
from harness.report.figures.kinds import FigureKind, figure_kinds
from harness.report.figures.sheet import sheet_of
from harness.report.figures.style import RC, WITHOUT_DATES

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Drawn(NamedTuple):
    """A figure that was written."""

    kind: FigureKind
    path: Path
    """Of the first format."""
    labels: tuple[str, ...]
    """Of the cells in it."""
    left_out: str = ""
    """K and temperatures of cells that it does not draw."""


def write_figures(
    cells: Sequence[CellResult],
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
    for kind in figure_kinds():
        sheet = sheet_of(cells, kind.along, distances)
        if sheet is None:
            continue
        with mpl.rc_context(RC):
            figure = kind.draw(sheet)
            if figure is None:
                continue
            for suffix in formats:
                save_figure(figure, folder / f"{kind.name}.{suffix}")
            part = kind.part(sheet)
            path = folder / f"{kind.name}.{formats[0]}"
            drawn.append(Drawn(kind, path, tuple(part.labels), sheet.beside(part)))
    return drawn


NUM_COLORS = 256
"""Of a PNG, as a palette holds: figures have few colours and their blends at edges; the file is a third as large."""


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure; the same figure gives the same file, byte for byte.

    Args:
        path: its suffix is the file type, one that matplotlib can write.
    """
    suffix, drawn, small = path.suffix.removeprefix("."), BytesIO(), BytesIO()
    if suffix != "png":
        figure.savefig(drawn, format=suffix, metadata=WITHOUT_DATES.get(suffix))
        write_atomically(path, drawn.getvalue())
        return
    from PIL import Image

    figure.savefig(drawn, format="png", metadata=WITHOUT_DATES["png"], pil_kwargs={"compress_level": 1})
    with Image.open(drawn) as image:
        in_palette = image.convert("RGB").quantize(
            NUM_COLORS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE
        )
        in_palette.save(small, format="PNG", dpi=image.info["dpi"], optimize=True)
    write_atomically(path, small.getvalue())
