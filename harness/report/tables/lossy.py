"""Table of lossy verification: acceptance beside the distance of what is emitted from the target's distribution.

The distance is that of a round's first token given its context, in closed form (`kernels.reference.output_tv`),
averaged over the rounds that have terms. It is recorded with `measurement.round_terms`.
This module knows what to show; it does not know where it is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from harness.analysis.cell import CellResult
from harness.analysis.comparison import groups
from harness.analysis.definitions import metric
from harness.analysis.estimates import Estimate, paired_difference
from harness.analysis.recorded_terms import Recorded
from harness.analysis.results import Results
from harness.report.cell_names import column_name, group_title
from harness.report.entries import estimate_number, metric_number
from harness.report.missing_values import table_notes
from harness.report.number_format import Number, count, scaled
from harness.report.table import NONE, Entry, Table

COLUMN = "output_tv"
DISTANCE = (
    "distance: total variation between the law of a round's first token, given its context, and the target's "
    "distribution there, in percent; computed in closed form and averaged over the rounds whose drafts count in "
    "full and were verified without a grammar's masks, in the contexts that the method itself came to; of fly from the "
    "drafts that were drawn, without bias where they hold no end-of-sequence token. 0 for lossless methods, by "
    "definition. Later tokens of a round are not in it, nor is how distances add up over a text."
)
NO_DIFFERENCE = (
    "–: the row that the others are compared with, or there is none; n/a as a distance: there is no such round."
)
METRICS = ("full_draft_length", "acceptance_rate", "speedup")


def lossy_tables(
    cells: Sequence[CellResult], recorded: Sequence[Recorded], references: Mapping[str, str | None]
) -> list[Table]:
    """Acceptance against distance in each setting of which a lossy cell recorded its distance.

    Args:
        cells: of any runs.
        recorded: those that have terms.
        references: run -> method that the others are compared with; where there is none, no differences are shown.
    """
    terms = {item.cell["cell_id"]: item for item in recorded if COLUMN in item.terms.values}
    tables = []
    for group in groups(cells):
        shown = [cell for cell in group.cells if cell["cell_id"] in terms]
        if any(cell["guarantee"] not in ("lossless", "biased") for cell in shown):
            method = references.get(group.first["run"])
            reference = next((cell for cell in group.cells if cell["verification"] == method), None)
            rows = tuple(_row(cell, terms[cell["cell_id"]], reference) for cell in shown)
            title = f"Acceptance against distance: {group_title(group, cells)}"
            header = ["verification", "distance (%)", metric(METRICS[0]).label, f"{MINUS_REFERENCE}{method}"]
            header += ["acceptance rate (%)", "speedup"]
            notes = (DISTANCE, NO_DIFFERENCE, *table_notes(shown, METRICS))
            tables.append(Table(title, tuple(header), rows, notes))
    return tables


MINUS_REFERENCE = "its difference to "


def distances(results: Results) -> dict[str, Estimate]:
    """Distance of every cell that recorded it, by id."""
    found = (item for item in results.recording.cells if COLUMN in item.terms.values)
    return {item.cell.record.cell_id: distance(item) for item in found}


def distance(item: Recorded, column: str = COLUMN) -> Estimate:
    """Mean distance, or of another column of whole drafts, with its interval by prompt.

    It is taken over a cell's rounds that have terms.
    """
    estimates = item.cell.estimates
    row_of = {prompt_id: row for row, prompt_id in enumerate(estimates.sums.prompt_ids)}
    rows_of_keys = np.array([row_of[prompt_id] for prompt_id, _, _ in item.terms.keys], dtype=np.int64)
    rows = rows_of_keys[item.terms.request]
    total = np.bincount(rows, weights=item.terms.values[column], minlength=len(row_of))
    count = np.bincount(rows, minlength=len(row_of)).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        replicates = (estimates.weights @ total) / (estimates.weights @ count)
        value = float(total.sum() / count.sum()) if count.sum() else float("nan")
    return estimates.with_interval(value, replicates)


def _row(cell: CellResult, item: Recorded, reference: CellResult | None) -> tuple[Entry, ...]:
    length = METRICS[0]
    difference: Entry = NONE
    if reference is not None and cell is not reference:
        estimate = paired_difference(reference.estimates, cell.estimates, length)
        difference = metric_number(estimate, length, signed=True)
    shown = count(0) if cell["guarantee"] == "lossless" else _percent(distance(item))
    values = [estimate_number(cell, name) for name in METRICS]
    return column_name(cell), shown, values[0], difference, *values[1:]


def _percent(estimate: Estimate) -> Number:
    """With two decimals: distances may be far below a percent."""
    return Number(*scaled(estimate, 100), style="length")
