"""Draws every figure that some cells allow, and writes it; knows file types, and not what is drawn."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness.metrics.cell import CellResult
from harness.metrics.estimates import Estimate
from harness.records.files import write_atomically
from harness.report.figures.kinds import FIGURES, FigureKind
from harness.report.figures.sheet import Sheet, sheet_of
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


class _Order(NamedTuple):
    """A figure to draw, if its kind has something to show."""

    kind: FigureKind
    sheet: Sheet
    formats: Sequence[str]

    def files(self) -> list[bytes] | None:
        """What to write, in each format."""
        import matplotlib as mpl

        with mpl.rc_context(RC):
            figure = self.kind.draw(self.sheet)
            return None if figure is None else [figure_file(figure, suffix) for suffix in self.formats]


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
    sheets = ((kind, sheet_of(cells, kind.along, distances)) for kind in FIGURES)
    orders = [_Order(kind, sheet, formats) for kind, sheet in sheets if sheet is not None]
    drawn = []
    for (kind, sheet, _), files in zip(orders, _drawn(orders), strict=True):
        if files is None:
            continue
        for suffix, content in zip(formats, files, strict=True):
            write_atomically(folder / f"{kind.name}.{suffix}", content)
        labels = tuple(sheet.narrowed(kind.axes).labels)
        drawn.append(Drawn(kind, folder / f"{kind.name}.{formats[0]}", labels))
    return drawn


MAX_PROCESSES = 8
"""That draw; few runs have more figures."""
_orders: Sequence[_Order] = ()
"""Of the processes that draw: what they inherit need not be sent."""


def _drawn(orders: Sequence[_Order]) -> Iterator[list[bytes] | None]:
    """The files of each figure; several are drawn at the same time, by copies of this process where that is cheap."""
    num_processes = min(MAX_PROCESSES, len(orders), os.cpu_count() or 1)
    # with torch there are threads, of which a copy has only the locks
    if num_processes < 2 or "torch" in sys.modules or sys.platform != "linux":
        yield from (order.files() for order in orders)
        return
    # once, and not in each copy
    import matplotlib.backends.backend_agg  # noqa: F401
    import PIL.Image  # noqa: F401

    global _orders  # noqa: PLW0603
    _orders = orders
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(num_processes, context, _leave_keys_to_the_parent) as pool:
        yield from pool.map(_files_of, range(len(orders)))
    _orders = ()


def _leave_keys_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)


def _files_of(place: int) -> list[bytes] | None:
    return _orders[place].files()


NUM_COLORS = 256
"""Of a PNG, as a palette holds: figures have few colours and their blends at edges; the file is a third as large."""


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure; the same figure gives the same file, byte for byte.

    Args:
        path: its suffix is the file type, one that matplotlib can write.
    """
    write_atomically(path, figure_file(figure, path.suffix.removeprefix(".")))


def figure_file(figure: Figure, suffix: str) -> bytes:
    """A figure as the bytes of a file of some type."""
    drawn, small = BytesIO(), BytesIO()
    if suffix != "png":
        figure.savefig(drawn, format=suffix, metadata=WITHOUT_DATES.get(suffix))
        return drawn.getvalue()
    from PIL import Image

    figure.savefig(drawn, format="png", metadata=WITHOUT_DATES["png"], pil_kwargs={"compress_level": 1})
    with Image.open(drawn) as image:
        in_palette = image.convert("RGB").quantize(
            NUM_COLORS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE
        )
        in_palette.save(small, format="PNG", dpi=image.info["dpi"], optimize=True)
    return small.getvalue()
