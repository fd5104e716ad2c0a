"""What several drafts a position would be worth: numbers and table, at the contexts that a chain visited.

A context is one at which the run had a draft token to verify: the first of each draft, and those after accepted tokens.
Each number is a probability that one of n drafts is accepted there, averaged over contexts. This is no tree's length: a
tree also drafts after tokens that the chain never had.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from harness.analysis.columns import with_interval
from harness.analysis.definitions import INTERVALS
from harness.analysis.estimates import Estimate, Estimates
from harness.analysis.metric import Metric
from harness.analysis.replay.frames import CELL_COLUMNS, RECORDED_COLUMNS
from harness.analysis.replay.replayed import Replayed, num_accepted, sums_by_prompt
from harness.analysis.sums import CellSums
from harness.records.acceptance_terms import Floats
from harness.report.cell_names import CONTEXT, label_notes, varying
from harness.report.entries import setting, settings_of
from harness.report.number_format import Number, count
from harness.report.table import NONE, Entry, Table
from kernels.tree.multi_drafts import MAX_DRAFTS, MULTI_DRAFT_RULES, MULTI_DRAFT_TERMS, multi_draft_term

OVERLAP = "overlap"
CONTEXTS = "contexts"
NO_TREE = (
    "This is no tree's length. The contexts are those of a chain: the first draft token of each round, and those whose "
    "predecessors the run accepted. A tree also drafts after tokens that the chain never had, where less is accepted, "
    "and its lower levels are reached more often."
)
WHAT = (
    "Probability (%) that one of n draft tokens of a position is accepted, mean over these contexts, in closed form: "
    "no draft was drawn. n = 1: sum min(p, q) under each, but for the best token, whose target mass it is."
)
OF_JOINT_RULES = (
    "Bounds are of one position: rules that decide about several together (block, traversal) are not bound by their "
    "product."
)


def has_several(replayed: Replayed) -> bool:
    """Whether the cell recorded what several drafts would be worth."""
    return set(MULTI_DRAFT_TERMS) <= set(replayed.recorded.terms.values)


def several_frame(replayed: Sequence[Replayed]) -> pd.DataFrame:
    """One row per cell that recorded it, and n = 1 .. 8.

    Returns:
        run, cell_id, target, drafter, num_speculative_tokens, temperature; recorded_* of the run that made the drafts;
        num_prompts, num_contexts; num_drafts: n; and of each rule and bound (kernels.tree.multi_drafts) the probability
        that one of n drafts is accepted, with _low and _high; nan where a rule has no term for so many.
    """
    rows = [row for item in replayed if has_several(item) for row in _rows(item)]
    names = [each for rule in MULTI_DRAFT_RULES for each in with_interval(rule)]
    first = [*CELL_COLUMNS, *(f"recorded_{name}" for name in RECORDED_COLUMNS)]
    return pd.DataFrame(rows, columns=[*first, "num_prompts", "num_contexts", "num_drafts", *names])


def _rows(replayed: Replayed) -> list[dict[str, Any]]:
    cell, estimates = replayed.cell, _estimates(replayed)
    common: dict[str, Any] = {name: cell[name] for name in CELL_COLUMNS}
    common |= {f"recorded_{name}": cell[name] for name in RECORDED_COLUMNS}
    common |= {"num_prompts": estimates.num_prompts, "num_contexts": int(estimates.total(CONTEXTS))}
    rows = []
    for number in range(1, MAX_DRAFTS + 1):
        row = common | {"num_drafts": number}
        for name in MULTI_DRAFT_RULES:
            term = _term(name, number)
            metric = Metric("", "", "", "percent", (term,) if term else ("",), CONTEXTS)
            found = estimates.with_interval(*estimates.ratio(metric))
            row |= dict(zip(with_interval(name), found, strict=True))
        rows.append(row)
    return rows


def _term(rule: str, number: int) -> str | None:
    """The recorded column of a rule for n drafts; None if there is none."""
    if number in MULTI_DRAFT_RULES[rule].numbers:
        return multi_draft_term(rule, number)
    return OVERLAP if number == 1 else None


def _estimates(replayed: Replayed) -> Estimates:
    """Sums over the contexts of each prompt."""
    terms, of_cell = replayed.recorded.terms, replayed.cell.estimates
    places = np.arange(terms.num_positions)
    visited = terms.drafted & (num_accepted(replayed.recorded)[:, None] >= places)
    tables: dict[str, Floats] = {CONTEXTS: visited.astype(np.float64)}
    tables |= {name: terms.of_positions(name) * visited for name in (OVERLAP, *MULTI_DRAFT_TERMS)}
    found = sums_by_prompt(replayed.recorded, {name: table.sum(axis=1) for name, table in tables.items()})
    sums = CellSums(of_cell.sums.prompt_ids, found, {}, terms.num_positions)
    return Estimates(sums, of_cell.num_resamples, of_cell.confidence)


def several_table(replayed: Sequence[Replayed], frame: pd.DataFrame) -> Table:
    """One row per cell and number of drafts."""
    cells = [item.cell for item in replayed if has_several(item)]
    extra, rows = varying(cells, CONTEXT), []
    for cell in cells:
        of_cell = frame[(frame["run"] == cell["run"]) & (frame["cell_id"] == cell["cell_id"])]
        settings = (*settings_of(cell, extra), setting(cell["num_speculative_tokens"]), cell.method)
        for row in of_cell.to_dict("records"):
            numbers = [_entry(row, name) for name in MULTI_DRAFT_RULES]
            rows.append((*settings, count(row["num_contexts"]), count(row["num_drafts"]), *numbers))
    header = (*extra, "T", "drafter", "K", "drafts of", "contexts", "n", *(r.title for r in MULTI_DRAFT_RULES.values()))
    definitions = [f"{rule.title}: {rule.definition}." for rule in MULTI_DRAFT_RULES.values()]
    notes = (WHAT, NO_TREE, OF_JOINT_RULES, *definitions, INTERVALS)
    table = Table("What several drafts a position would be worth", header, tuple(rows), notes)
    return replace(table, notes=(*notes, *label_notes(cells)))


def _entry(row: dict[Any, Any], name: str) -> Entry:
    estimate = Estimate(*(row[item] for item in with_interval(name)))
    return NONE if pd.isna(estimate.value) else Number(*estimate, style="percent")
