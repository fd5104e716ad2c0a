"""The one style of all figures: a colour, marker and line style for every method, and what matplotlib is told.

The colours are told apart by colour-blind readers (Okabe and Ito), the markers and lines in grey. Heat maps use a scale
whose lightness rises evenly, so that it survives grey too.
This module knows looks, neither cells nor matplotlib.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any, NamedTuple


class Look(NamedTuple):
    color: str
    marker: Any
    linestyle: Any


LOOKS = {
    "strict": Look("#0072B2", "o", "-"),
    "coupled": Look("#E69F00", "s", "--"),
    "greedy": Look("#56B4E9", "X", ":"),
    "probabilistic": Look("#D55E00", "^", "-."),
    "block": Look("#009E73", "D", (0, (6, 1.5))),
    "typical": Look("#CC79A7", "v", ":"),
    "lenient": Look("#882255", "P", (0, (1, 1))),
    "threshold": Look("#7F3C8D", (7, 1, 0), (0, (4, 1))),
    "fly": Look("#B8860B", (8, 1, 0), (0, (2, 2))),
    "synthetic": Look("#666666", "*", (0, (3, 1, 1, 1))),
    "recursive": Look("#661100", (5, 1, 0), "-"),
    "kseq": Look("#6699CC", (3, 1, 0), "--"),
    "traversal": Look("#4D9221", (6, 1, 0), (0, (5, 1, 1, 1))),
    "pr35461": Look("#000000", "h", (0, (4, 2, 1, 2))),
}
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
