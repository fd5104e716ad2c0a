"""Writes a figure to a file.

This module knows file types; it does not know what is drawn.
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from harness.report.figures.style import WITHOUT_DATES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUM_COLORS = 256
"""Of a PNG, as a palette holds: figures have few colours and their blends at edges; the file is a third as large."""


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure; the same figure gives the same file, byte for byte.

    Args:
        path: its suffix is the file type, one that matplotlib can write; its folder exists.
    """
    suffix = path.suffix.removeprefix(".")
    if suffix != "png":
        figure.savefig(path, metadata=WITHOUT_DATES.get(suffix))
        return
    from PIL import Image

    drawn = BytesIO()
    figure.savefig(drawn, format="png", metadata=WITHOUT_DATES["png"], pil_kwargs={"compress_level": 1})
    with Image.open(drawn) as image:
        in_palette = image.convert("RGB").quantize(
            NUM_COLORS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE
        )
        in_palette.save(path, dpi=image.info["dpi"], optimize=True)
