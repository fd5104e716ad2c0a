"""The table of how depths are chosen: what each cell reached beside the best choice on the rounds and times of its run.

This module knows what to show; it does not know where it is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.analysis.cell import CellResult
from harness.analysis.depth_optimum import Reached, depth_families
from harness.analysis.estimates import Estimate
from harness.analysis.recorded_terms import Recorded
from harness.report.cell_names import CONTEXT, DISTURBED, depth_text, is_disturbed, varying
from harness.report.entries import settings_of
from harness.report.number_format import Number, without_width_zero
from harness.report.table import Entry, Table

RARE = 0.05
"""Share of rounds below which a depth is not named."""
NOTES = (
    "Of the steps that read no prompt: output tokens / time; of all in which requests decode, where nine rounds of ten "
    "are in steps that read prompts too at every fixed depth with drafts, as with many requests in flight, and without "
    "no drafts, as a line and among the best, where their steps seldom do. best by batch: at each "
    "number of decoding requests the fixed depth with most tokens per second, no drafts included, by the cells of "
    "fixed depth; the cell's tokens / the time that they would have taken at it. Each line has the best of the batch "
    "sizes that it had itself, so that lines differ in it. share: the cell's throughput / that. drafts of a round: "
    "tokens that rounds drafted, with their share of the rounds from 5 % on; best by batch: the same of the best. "
    "Depths are chosen on the same data, which overstates the best a little. Cells with an impossible speedup are left "
    "out, and those that no session measured beside the others.",
    "bound by rows: the same if every round had stopped where its rows, the target's among them, and its draft tokens "
    "make most tokens per second, chosen in hindsight (Dinkelbach's iteration). No policy that decides in front of "
    "each draft token whether to draft it, as lossless ones must, and drafts no more than the deepest fixed cell is "
    "faster, if rounds begin at that cell's contexts and the time which a draft adds to a step does not depend on "
    "other drafts; policies, which do not see the target's rows or later tokens, need not come near. n/a unless "
    "measurement.round_terms recorded the deepest fixed cell's drafts, all of them (none is under a grammar's masks), "
    "and for methods other than probabilistic.",
    "Depths by draft rows (confidence) know more than the batch: their share may exceed 1. Intervals: bootstrap by "
    "prompt; they do not include the drift of the machine.",
)


def depth_choice_tables(cells: Sequence[CellResult], recorded: Sequence[Recorded] = ()) -> list[Table]:
    """One table, where a run has cells of fixed depths and cells whose depths are chosen; else none.

    Args:
        cells: of any runs.
        recorded: those of them that have terms.
    """
    families = depth_families(cells, recorded)
    if not families:
        return []
    extra = varying([item.cell for family in families for item in family], CONTEXT)
    header = [*extra, "T", "drafter", "verification", "depth", "drafts of a round", "tokens/s while decoding"]
    header += ["best by batch", "best by batch (tokens/s)", "share"]
    rows = [_row(item, family[-1].cell, extra) for family in families for item in family]
    return [Table("Choice of draft depth", (*header, "bound by rows (tokens/s)"), tuple(rows), NOTES)]


def _depths(shares: Mapping[int, float]) -> str:
    """Depths with the share of rounds that have them, the most frequent first; rare ones are left out."""
    if len(shares) == 1:
        return str(*shares)
    named = sorted(shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{depth}: {share:.0%}" for depth, share in named if share >= RARE)


def _row(item: Reached, named: CellResult, extra: Sequence[str]) -> tuple[Entry, ...]:
    """named: a cell with the family's drafter and method, which a baseline does not have."""
    mark = DISTURBED if is_disturbed(item.cell) else ""

    def number(estimate: Estimate, style: str) -> Number:
        found = Number(*without_width_zero(estimate), style=style, mark=mark)
        return replace(found, mark="") if found.is_missing else found

    method = f"{named.method}, {named['draft_sampling']} drafts"
    depth = "no drafts" if item.cell.is_baseline else depth_text(item.cell)
    return (
        *(*settings_of(named, extra), method, depth),
        _depths(item.taken),
        number(item.tokens_per_s, "significant"),
        _depths(item.best),
        number(item.by_batch, "significant"),
        number(item.share, "length"),
        number(item.by_rows, "significant"),
    )
