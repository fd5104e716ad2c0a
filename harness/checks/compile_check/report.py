"""What a compile check found of every variant, as a table for a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from harness.checks.compile_check.compiled import CompiledVariant
from harness.report.number_format import count
from harness.report.table import ColumnOf, table_of
from harness.report.text_table import text_lines

WIDTH = 200
"""Characters of a line at most, so that the table is in one piece."""
COLUMNS: tuple[ColumnOf[CompiledVariant], ...] = (
    ("kernel", lambda item: item.kernel),
    ("target", lambda item: f"sm_{item.target}"),
    ("launched by", lambda item: item.launched_by),
    ("warps", lambda item: count(item.num_warps)),
    ("registers", lambda item: count(item.num_registers)),
    ("shared B", lambda item: count(item.shared_bytes)),
    ("stack B", lambda item: count(item.stack_bytes)),
    ("spill st. B", lambda item: count(item.spill_store_bytes)),
    ("ld. B", lambda item: count(item.spill_load_bytes)),
    ("barriers", lambda item: count(item.num_barriers)),
)


def to_text(variants: Iterable[CompiledVariant]) -> str:
    """A line for each variant; what all have in common stands above."""
    return "\n".join(text_lines(table_of("", variants, COLUMNS), WIDTH))
