"""The table of where greedy answers part, and whether rounding can have decided there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.analysis.answers import Parting, other_answers, partings
from harness.analysis.cell import CellResult
from harness.records.partings import AttributedParting
from harness.report.cell_names import CONTEXT, MINUS, varying
from harness.report.entries import setting, settings_of
from harness.report.number_format import Number, count
from harness.report.table import NONE, Entry, Table

TITLE = "Where answers part at temperature 0"
NOTES = (
    "near tie: rounding can have decided. The token of each answer is behind the best logit, recomputed in float32 "
    "behind the text that both share, by at most twice what rounding to the dtype of the cells moves the gap of the "
    "two best logits in this text.",
    "no near tie: look for a fault in kernels, positions or caches. Partings behind an earlier one of the same "
    "conversation are not counted: their prompts differ.",
    "gap: between the two best logits, in float32; behind: how far the lower of the two tokens is below the best. The "
    "largest of the pair.",
)


def partings_tables(cells: Sequence[CellResult], found: Mapping[str, Sequence[AttributedParting]]) -> list[Table]:
    """One row per pair of cells with partings that were looked at (`rejection-lab partings`).

    Args:
        cells: of any runs.
        found: run -> what was found.
    """
    by_id = {(cell["run"], cell.record.cell_id): cell for cell in cells}
    extra, rows = varying(cells, CONTEXT), list[tuple[Entry, ...]]()
    for run, items in found.items():
        pairs: dict[tuple[str, str], list[AttributedParting]] = {}
        for item in items:
            pairs.setdefault((item.first_cell, item.second_cell), []).append(item)
        for (first_id, second_id), looked_at in pairs.items():
            if (run, first_id) in by_id and (run, second_id) in by_id:
                rows += _row(by_id[run, first_id], by_id[run, second_id], looked_at, extra)
    if not rows:
        return []
    header = (*extra, "T", "drafter", "K", "comparison", "answers", "parted", "first token", "near ties", "no near tie")
    return [Table(TITLE, (*header, "gap", "behind"), tuple(rows), NOTES)]


def _row(
    first: CellResult, second: CellResult, looked_at: Sequence[AttributedParting], extra: Sequence[str]
) -> list[tuple[Entry, ...]]:
    """The row of a pair; none where the records are no longer those that were looked at."""
    there = {*partings(first.record, second.record)}
    held = [item for item in looked_at if _parting(item) in there]
    if not held:
        return []
    answers = other_answers(first.record, second.record)
    name = "baseline" if first.is_baseline else first.method
    near = sum(item.is_near_tie for item in held)
    return [
        (
            *settings_of(second, extra),
            setting(second["num_speculative_tokens"]),
            f"{second.method}{MINUS}{name}",
            count(answers.num_compared),
            count(answers.num_parted),
            NONE if answers.first_token is None else count(answers.first_token),
            count(near),
            count(len(held) - near),
            Number(max(item.gap for item in held), decimals=4),
            Number(max(item.behind for item in held), decimals=4),
        )
    ]


def _parting(item: AttributedParting) -> Parting:
    return Parting((item.prompt_id, item.turn, item.sample), item.place, item.tokens)
