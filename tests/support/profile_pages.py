"""Reads the page that a profile of rounds prints."""

from __future__ import annotations

import re

from harness.checks.profiling.report import HEADER
from harness.report.table import NONE


def rows_of(page):
    """The cells of the first table by the names of its columns, those that stand once above it among them."""
    table = page.partition("## Phases of a round")[2].partition("\n## ")[0]
    above, *lines = [text for text in table.splitlines() if text]
    lines = [above, *lines] if above.startswith("|") else lines
    parts = re.split(rf"(?:^|; )({'|'.join(map(re.escape, HEADER))}): ", "" if above.startswith("|") else above)
    once = dict(zip(parts[1::2], parts[2::2], strict=True))
    header, _, *rows = ([cell.strip() for cell in text.strip("|").split("|")] for text in lines)
    nothing = dict.fromkeys(HEADER, NONE) | {"labels": ""}
    return [nothing | once | dict(zip(header, row, strict=True)) for row in rows]
