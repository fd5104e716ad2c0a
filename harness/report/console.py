"""A compact summary for a terminal of 120 columns: a block per drafter and temperature, a line per method.

rich is imported when something is shown. This module knows what to show; the tables with everything are files.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import IO, TYPE_CHECKING

from harness.metrics.cell import CellResult
from harness.metrics.comparison import expected_difference, groups, same_law
from harness.metrics.estimates import Estimate, paired_difference, paired_ratio
from harness.records.request import EXPECTED_METHODS
from harness.report.cell_names import (
    DISTURBED,
    baseline_name,
    depth_text,
    drafter_name,
    is_disturbed,
    label_notes,
    label_suffix,
    shared_title,
    summary_order,
)
from harness.report.entries import estimate_number, metric_number
from harness.report.missing_values import missing_value_notes
from harness.report.number_format import NOT_AVAILABLE, format_estimate, format_value
from harness.report.table import NONE, Table
from harness.report.tables.engines import engine_lines
from harness.report.tables.reasoning import reasoning_lines
from harness.report.tables.repeats import repeats_tables

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

WIDTH = 120
"""Where standard output is not a terminal."""
LEGEND = (
    "acc %: accepted draft tokens / draft tokens, then by position. length: 1 + accepted draft tokens / drafts, over "
    "the drafts that count in full (not shortened by the length limit or a drafted end-of-sequence token). expected: "
    "the length that strict/probabilistic/block expect on these same drafts, without the noise of acceptance. tok/s: "
    "output tokens / wall time. speedup: over the baseline of this run. Brackets: bootstrap intervals by prompt (n/a "
    "with fewer than 2 prompts, and where all prompts share one time); differences, ratios and the speedup are paired "
    "by prompt."
)
SHOWN_METRICS = (
    *("acceptance_rate", "full_draft_length", *(f"expected_length_{method}" for method in EXPECTED_METHODS)),
    *("output_tokens_per_s", "speedup"),
)


def print_summary(cells: Sequence[CellResult], stream: IO[str] | None = None) -> None:
    """Print the summary of some cells.

    Args:
        cells: at least one.
        stream: where to; None is standard output.
    """
    console = _console(stream)
    for block in blocks(cells):
        _print_block(console, block, cells)
    for table in repeats_tables(cells):
        _print_table(console, table)
        # its brackets are not those of the legend
        console.print(table.notes[0], style="dim", markup=False, highlight=False)
        console.print()
    for line in engine_lines(cells):
        console.print(line, style="cyan", markup=False)
    for text in (LEGEND, *missing_value_notes(cells, SHOWN_METRICS), *label_notes(cells)):
        console.print(text, style="dim", markup=False, highlight=False)


def _console(stream: IO[str] | None) -> Console:
    from rich.console import Console

    stream = sys.stdout if stream is None else stream
    console = Console(file=stream, highlight=False)
    return console if console.is_terminal else Console(file=stream, highlight=False, width=WIDTH)


def blocks(cells: Sequence[CellResult]) -> list[list[CellResult]]:
    """The cells with a drafter, a list for every drafter, temperature and context; baselines apart, if alone."""
    found: dict[tuple[str, ...], list[CellResult]] = {}
    for cell in sorted(cells, key=summary_order):
        key = (cell.context_key, drafter_name(cell))
        if not cell.is_baseline:
            found.setdefault(key, []).append(cell)
    with_drafter = {key[0] for key in found}
    alone = [[cell] for cell in cells if cell.is_baseline and cell.context_key not in with_drafter]
    return [*alone, *found.values()]


def _print_block(console: Console, block: Sequence[CellResult], cells: Sequence[CellResult]) -> None:
    with_depth = len(set(map(depth_text, block))) > 1
    console.print(shared_title(block[0], cells, with_depth=not with_depth), style="bold", markup=False)
    shown = _shown(block, cells)
    console.print(_table(shown, with_depth=with_depth, width=console.width))
    for line in [*reasoning_lines(shown), *paired_lines(block)]:
        console.print(f"  {line}", style="cyan", markup=False)
    console.print()


def _print_table(console: Console, table: Table) -> None:
    from rich.table import Table as RichTable
    from rich.text import Text

    console.print(table.title, style="bold", markup=False)
    shown = RichTable(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    for name in table.header:
        shown.add_column(name, overflow="fold")
    for texts in table.texts:
        shown.add_row(*map(Text, texts))
    console.print(shown)


def _shown(block: Sequence[CellResult], cells: Sequence[CellResult]) -> list[CellResult]:
    """The cells of a block, their baseline first, also one that failed."""
    failed = (cell for cell in cells if cell.is_baseline and cell.context_key == block[0].context_key)
    baseline = block[0].baseline or next(failed, None)
    return [*([baseline] if baseline else []), *(cell for cell in block if not cell.is_baseline)]


def _table(shown: Sequence[CellResult], *, with_depth: bool, width: int) -> RichTable:
    from rich.table import Table
    from rich.text import Text

    names = ["method", "drafts", *(["K"] if with_depth else []), "acc %", "by position"]
    names += ["length", "expected", "tok/s", "speedup"]
    lines = [_texts(cell, with_depth=with_depth) for cell in shown]
    needed = sum(max(map(len, column)) for column in zip(names, *lines, strict=True))
    gap = 2 if needed + 2 * (len(names) - 1) <= width else 1
    table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="dim")
    for name in names:
        wraps, is_text = name in ("method", "drafts", "by position"), name in ("method", "drafts")
        table.add_column(name, justify="left" if is_text else "right", no_wrap=not wraps, overflow="fold")
    for cell, texts in zip(shown, lines, strict=True):
        # Text, so that rich does not take brackets for markup
        table.add_row(*(Text(text) for text in texts), style="dim" if cell.is_baseline else None)
    return table


def _texts(cell: CellResult, *, with_depth: bool) -> list[str]:
    """One line of a block."""
    # the method's mark says it for both, in less room
    timed = [str(replace(estimate_number(cell, name), note="")) for name in ("output_tokens_per_s", "speedup")]
    mark = f" [{DISTURBED}]" if is_disturbed(cell) else ""
    if cell.is_baseline:
        return [baseline_name(cell) + mark, *[NONE] * (5 + with_depth), *timed]
    positions = range(1, cell.estimates.sums.num_positions + 1)
    rates = [cell.estimate(f"acceptance_rate_per_pos_{position}").value for position in positions]
    expected = [cell.estimate(f"expected_length_{method}").value for method in EXPECTED_METHODS]
    return [
        cell["verification"] + label_suffix(cell) + mark,
        cell.drafts,
        *([str(cell["num_speculative_tokens"])] if with_depth else []),
        format_value(cell.estimate("acceptance_rate").value, "percent"),
        " ".join(format_value(rate, "percent", decimals=0) for rate in rates),
        str(estimate_number(cell, "full_draft_length")),
        "/".join(format_value(value, "length") for value in expected) if expected[0] == expected[0] else NOT_AVAILABLE,
        *timed,
    ]


def paired_lines(block: Sequence[CellResult]) -> list[str]:
    """Paired differences of neighbouring methods that draw their drafts alike, and which of them follow one law."""
    lines = []
    depths = set(map(depth_text, block))
    compared = [[cell for cell in group.cells if _has_drafts(cell)] for group in groups(block)]
    compared = [cells for cells in compared if len(cells) > 1]
    if compared and all(same_law(cells[0], cell) for cells in compared for cell in cells[1:]):
        where = " and tree" if any(cell["tree"] for cell in block) else ""
        each = f" of the same K{where}" if len(depths) > 1 else ""
        return [f"same law: these methods{each} accept with the same probability here"]
    for cells in compared:
        for drafts in dict.fromkeys(cell.drafts for cell in cells):
            pairs = pairwise(cell for cell in cells if cell.drafts == drafts)
            lines += [_paired_line(first, second, with_depth=len(depths) > 1) for first, second in pairs]
    return lines


def _has_drafts(cell: CellResult) -> bool:
    return cell.estimates.total("num_drafts") > 0


def _paired_line(first: CellResult, second: CellResult, *, with_depth: bool) -> str:
    depth = f" at {depth_text(first)}" if with_depth else ""
    name = f"{second.method} − {first.method}{depth}"
    if same_law(first, second):
        return f"{name}: same law"
    length = paired_difference(first.estimates, second.estimates, "full_draft_length")
    expected = expected_difference(first, second)
    ratio: Estimate = paired_ratio(first.estimates, second.estimates, "output_tokens_per_s")
    parts = [f"length {format_estimate(length, 'length', signed=True)}"]
    if expected is not None:
        parts.append(f"same drafts {format_estimate(expected, 'length', signed=True)}")
    parts.append(f"tok/s × {metric_number(ratio, 'output_tokens_per_s', style='length')}")
    return f"{name}: {', '.join(parts)}"
