"""Table of the draft-logit cache: what its type, and drawing from other values than it holds, do to the output.

Bias and bound are those of a round's first token given its context, in closed form (`kernels.reference.output_tv`,
`kernels.reference.output_tv`), averaged over the rounds that have terms; recorded with
`measurement.round_terms`. This module knows what to show; it does not know where it is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.analysis.cell import CellResult
from harness.analysis.comparison import Group, groups
from harness.analysis.definitions import metric
from harness.analysis.estimates import paired_difference
from harness.analysis.recorded_terms import Recorded
from harness.report.cell_names import group_title, label_suffix
from harness.report.entries import estimate_number, metric_number
from harness.report.missing_values import table_notes
from harness.report.number_format import Number, count, scaled
from harness.report.table import NONE, Entry, Table
from harness.report.tables.lossy import distance

METRIC = "full_draft_length"
DTYPE_ORDER = ("float32", "float16", "bfloat16")
BIAS = (
    "bias: total variation between the law of a round's first token, given its context, and the target's distribution "
    "there, in units of 0.0001; computed in closed form and averaged over the rounds whose drafts count in full "
    "and were verified without a grammar's masks. 0 where drafts are drawn from the cache, and under methods that do "
    "not compare with it, because these are lossless; a dash where it was not recorded or has no closed form (block "
    "with K > 1). Later tokens are not in it, nor how biases add up over a text."
)
BOUND = (
    "bound: total variation between the distribution that the first draft token was drawn from and the one in the "
    "cache, in the same units, averaged likewise; the bias of probabilistic verification cannot be larger, in any "
    "round. A dash where it was not recorded (measurement.round_terms=false)."
)
DIFFERENCE = (
    "difference: of that length to the first row of the same method, paired by prompt. The cells share their "
    "random numbers, so a text is the same in both until rounding changes a token; an exact 0 says that it never did. "
    "–: that first row."
)
MEMORY = "draft-logit cache: with the row statistics beside it, which are kept only where drafts are drawn from it."
HEADER = (
    *("verification", "cache", "drafts drawn from", "guarantee", "bias (1e-4)", "bound (1e-4)"),
    *(metric(METRIC).label, "difference", "draft-logit cache (MiB)"),
)


def draft_dtype_tables(cells: Sequence[CellResult], recorded: Sequence[Recorded]) -> list[Table]:
    """One table for each target, drafter, K and decoding in which some method was run with several caches.

    Args:
        cells: of any runs.
        recorded: those that have terms.
    """
    terms = {(item.cell["run"], item.cell["cell_id"]): item for item in recorded}
    found = [group for group in groups(cells) if _varies(group)]
    return [_table(group, f"Draft-logit cache: {group_title(group, cells)}", terms) for group in found]


def _varies(group: Group) -> bool:
    """Whether some method was run with several caches."""
    kept = [cell for cell in group.cells if cell["draft_cache_dtype"]]
    return len({_cache(cell) for cell in kept}) > 1 and len({_method(cell) for cell in kept}) < len(kept)


def _cache(cell: CellResult) -> tuple[str, str]:
    return cell["draft_cache_dtype"], cell["drawn_from"]


def _method(cell: CellResult) -> tuple[str, str]:
    return cell["verification"], cell["draft_sampling"]


def _table(group: Group, title: str, terms: Mapping[tuple[str, str], Recorded]) -> Table:
    rows = []
    by_method: dict[tuple[str, str], list[CellResult]] = {}
    for cell in group.cells:
        if cell["draft_cache_dtype"]:
            by_method.setdefault(_method(cell), []).append(cell)
    for alike in by_method.values():
        ordered = sorted(alike, key=_rank)
        rows += [_row(cell, ordered[0], terms.get((cell["run"], cell["cell_id"]))) for cell in ordered]
    notes = (BIAS, BOUND, DIFFERENCE, MEMORY, *table_notes(group.cells, [METRIC]))
    return Table(title, HEADER, tuple(rows), notes)


def _rank(cell: CellResult) -> tuple[bool, int, str]:
    """The more precise and the unbiased first."""
    dtype = cell["draft_cache_dtype"]
    return cell["drawn_from"] != "stored", DTYPE_ORDER.index(dtype), dtype


def _row(cell: CellResult, first: CellResult, item: Recorded | None) -> tuple[Entry, ...]:
    is_stored = cell["drawn_from"] == "stored"
    difference: Entry = NONE
    if cell is not first:
        difference = metric_number(paired_difference(first.estimates, cell.estimates, METRIC), METRIC, signed=True)
    return (
        f"{cell['verification']}, {cell['draft_sampling']} drafts{label_suffix(cell)}",
        cell["draft_cache_dtype"],
        "the cache" if is_stored else "unrounded logits",
        cell["guarantee"],
        count(0) if cell["guarantee"] == "lossless" else _mean(item, "output_tv"),
        count(0) if is_stored else _mean(item, "draft_tv"),
        estimate_number(cell, METRIC),
        difference,
        Number(cell.draft_logit_cache_mib, style="length"),
    )


def _mean(item: Recorded | None, column: str) -> Entry:
    """Mean of a column of whole drafts; a dash where it was not recorded."""
    if item is None or column not in item.terms.values:
        return NONE
    return Number(*scaled(distance(item, column), 1e4), style="length")
