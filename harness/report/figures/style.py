"""The one style of all figures: how series are drawn, and what matplotlib is told.

The colours are told apart by colour-blind readers (Okabe and Ito), the markers and lines in grey. Heat maps use a scale
whose lightness rises evenly, so that it survives grey too.
This module knows looks, neither cells nor matplotlib.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from kernels.methods import NAMED_METHODS
from kernels.methods.rule import Look

LOOKS = {name: method.kind.look for name, method in NAMED_METHODS.items() if method.kind.look is not None}
"""Of the verification methods, by name."""
SPARE_LOOKS = (
    Look("#332288", "<", "-"),
    Look("#88CCEE", ">", "--"),
    Look("#999933", "p", "-."),
    Look("#AA4499", "d", ":"),
    Look("#117733", "x", (0, (5, 1, 1, 1, 1, 1))),
    Look("#CC6677", (4, 1, 0), (0, (2, 2))),
    Look("#44AA99", "8", (0, (8, 2, 2, 2))),
    Look("#A08A1E", "H", (0, (1, 3))),
)
"""For further series of the same method: other parameters, other drafts, another draft-logit cache. None is a plus,
which an interval drawn through it would hide."""

DPI = 160
RC = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.3,
    "lines.markersize": 4,
    "errorbar.capsize": 2,
    "legend.frameon": False,
    "figure.titlesize": 10.5,
    "savefig.dpi": DPI,
    "pdf.fonttype": 42,
    "hatch.linewidth": 0.6,
}
WITHOUT_DATES = {"png": {"Software": None}, "pdf": {"CreationDate": None}}
"""The same records give the same file, byte for byte, with the same version of matplotlib."""
REFERENCE_LINE = "#777777"
"""Where nothing is gained: length 1, speedup 1."""
SEPARATOR = "#DDDDDD"
HEAT_COLORS = "cividis"
"""Lightness rises evenly, for colour-blind readers and in grey."""
NOT_RUN_LOOK = {"facecolor": "#F2F2F2", "edgecolor": "#AAAAAA", "hatch": "////", "linewidth": 0}
"""Cells of a heat map that were not run."""

SAME_LAW_MARK, SAME_LAW_TEXT = "≡", "same law as another method at these settings"
"""What differs between the two is noise."""


def spare_looks() -> Iterator[Look]:
    """The spare looks without end, then their colours with other markers and lines.

    The first four rounds differ pairwise in colour with marker, and in marker with line, so that they are told apart in
    grey too.
    """
    for step in count():
        for index, look in enumerate(SPARE_LOOKS):
            marker = SPARE_LOOKS[(index + step) % len(SPARE_LOOKS)].marker
            line = SPARE_LOOKS[(index + 3 * step) % len(SPARE_LOOKS)].linestyle
            yield Look(look.color, marker, line)
