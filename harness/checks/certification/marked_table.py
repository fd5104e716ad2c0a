"""A table in a README.md, written anew between two marks."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple


class MarkedTable(NamedTuple):
    """Its marks and the header of its columns."""

    begin: str
    end: str
    columns: tuple[str, ...]

    def text(self, rows: Iterable[tuple[str, ...]]) -> str:
        """The whole table as Markdown, between its marks."""
        lines = [self.columns, ("---",) * len(self.columns), *rows]
        return self.begin + "".join(f"| {' | '.join(line)} |\n" for line in lines) + self.end

    def write(self, folder: Path, rows: Iterable[tuple[str, ...]]) -> None:
        """Put the table into the folder's README.md, in the place of the one that is there."""
        page = folder / "README.md"
        before, _, rest = page.read_text(encoding="utf-8").partition(self.begin)
        _, _, after = rest.partition(self.end)
        page.write_text(before + self.text(rows) + after, encoding="utf-8")
