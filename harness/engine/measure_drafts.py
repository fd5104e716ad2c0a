"""The acceptance that each method expects on a step's drafts, and the terms that replay needs.

The engine stops its clock meanwhile (`measuring.py` says when). A new column of terms is named in
`harness.records.term_columns`, and its values are given here: as [B, K] for the positions, or [B] for whole drafts.
It does not know requests or files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from torch import Tensor

from harness.engine.sequence import MeasuredDraft
from harness.engine.step import Step, StepOutput
from harness.engine.tree_step import accepted_nodes
from harness.records.acceptance_terms import Floats
from harness.records.request import BOUND_DECIMALS
from kernels.contract import Sampling, Verification
from kernels.reference.acceptance import AcceptanceTerms, acceptance_terms, expected_accepted
from kernels.reference.multi_draft_terms import multi_draft_terms
from kernels.reference.output_tv import draft_tv, has_closed_form, output_tv
from kernels.reference.tree_bounds import tree_bounds


class DraftRows(NamedTuple):
    """What is measured of a step, for B slots."""

    output: StepOutput
    sampling: Sampling
    """Fields [B]."""
    drawn_rows: Tensor | None
    """[>= B, V_draft], see Drafter.drawn_rows."""

    @classmethod
    def of(cls, step: Step, output: StepOutput) -> DraftRows:
        """Where a step of an engine has left them; the next one may overwrite them."""
        return cls(output, step.state.sampling.rows(output.draft.num_draft_tokens.numel()), step.drafter.drawn_rows)


class Measures(NamedTuple):
    """What was measured on a step's drafts, per slot."""

    expected: list[list[float]] | None
    """None for trees."""
    bounds: list[list[float]]
    """Of each position, the largest probability with which any lossless rule accepts a draft token; NaN: not known."""
    terms: dict[str, Floats] | None
    """None unless they are recorded."""

    def of(self, slot: int, num_draft_tokens: int) -> MeasuredDraft:
        """The share of a slot, of a draft of so many tokens."""
        bounds = tuple(self.bounds[slot][:num_draft_tokens])
        known = None if any(map(math.isnan, bounds)) else bounds
        if self.expected is None:
            return MeasuredDraft(None, known, None)
        strict, probabilistic, block = self.expected[slot]
        terms = None if self.terms is None else of_slot(self.terms, slot, num_draft_tokens)
        return MeasuredDraft((strict, probabilistic, block), known, terms)


class MeasureDrafts:
    """Measures the drafts of one engine's steps, which `verification` decided."""

    def __init__(self, verification: Verification, keeps_terms: bool, keeps_multi_draft_terms: bool) -> None:
        self.verification, self.keeps_multi_draft_terms = verification, keeps_multi_draft_terms
        self.keeps_terms = keeps_terms

    def __call__(self, rows: DraftRows) -> Measures:
        (output, sampling, drawn_rows), keeps = rows, self.keeps_terms
        terms = acceptance_terms(output.logits, output.draft, sampling, keeps, output.compared)
        columns = term_columns(terms, output, sampling, self.verification, drawn_rows) if keeps else {}
        if self.keeps_multi_draft_terms and output.draft.logits is not None:
            columns |= multi_draft_terms(output.logits, output.draft, sampling)
        kept = {name: column.cpu().numpy() for name, column in columns.items()}
        bounds = terms.overlap.round(decimals=BOUND_DECIMALS).tolist()
        return Measures(expected_accepted(terms, output.draft).tolist(), bounds, kept if keeps else None)


def measure_trees(rows: DraftRows) -> Measures:
    """The same of a step whose drafts are trees, of which the bounds alone are measured."""
    output = rows.output
    bounds = tree_bounds(output.logits, output.draft, rows.sampling, accepted_nodes(output))
    return Measures(None, bounds.round(decimals=BOUND_DECIMALS).tolist(), None)


def term_columns(
    terms: AcceptanceTerms,
    output: StepOutput,
    sampling: Sampling,
    verification: Verification,
    drawn_rows: Tensor | None = None,
) -> dict[str, Tensor]:
    """Every recorded column of a step.

    Args:
        terms: of the step's drafts, with masses.
        output: what the step left: its target logits and its drafts, for columns that need more than the terms.
        sampling: fields [B].
        verification: the method that decided the step.
        drawn_rows: [>= B, V_draft] what the first draft tokens were drawn from; None: what is cached.

    Returns:
        Column -> [B, K] or [B] float64; without a meaning for slots that drafted nothing.
    """
    columns = terms._asdict()
    assert all(column is not None for column in columns.values()), "computed with masses"
    num_rows, num_tokens = output.draft.token_ids.shape
    drawn = None if drawn_rows is None else drawn_rows[:num_rows]
    if has_closed_form(verification, num_tokens, draws_unrounded=drawn is not None):
        columns["output_tv"] = output_tv(output.logits, output.draft, sampling, verification, drawn)
    if drawn is not None:
        columns["draft_tv"] = draft_tv(output.draft, sampling, drawn)
    return columns


def of_slot(columns: Mapping[str, Floats], slot: int, num_draft_tokens: int) -> dict[str, Floats]:
    """The columns of one slot's draft, [num_draft_tokens], or [] where they are of the whole draft; copies."""
    return {
        name: np.array(values[slot, :num_draft_tokens] if values.ndim == 2 else values[slot])
        for name, values in columns.items()
    }
