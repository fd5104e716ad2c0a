"""A cell's drafts under every method: sums per prompt, estimates with intervals, differences on the same drafts.

All sums of a cell meet the same resamples of its prompts, those of its sampled estimates too; so differences between
methods, and between replayed and sampled values, are paired.

Shapes: D drafts, K positions, P prompts.
This module knows estimators and intervals; it does not know how they are printed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from harness.analysis.cell import CellResult
from harness.analysis.estimates import Estimate, Estimates
from harness.analysis.metric import Metric
from harness.analysis.recorded_terms import Recorded
from harness.analysis.replay.estimators import Estimator, estimators_of, reaching, recorded_rule, rule_name
from harness.analysis.sums import CellSums
from harness.records import InconsistentRecordError
from harness.records.acceptance_terms import Floats, Integers, RoundTerms, measured_drafts
from harness.records.request import EXPECTED_METHODS
from kernels.verification import Verification

SAMPLED = "sampled"
"""Name, beside the rules', of what the run itself accepted of these drafts."""
TOLERANCE = 1e-6
"""Between expected lengths of the record and of the terms: both are float64, one was computed by torch."""


@dataclass(frozen=True)
class Replayed:
    """A recorded cell with the methods that are computed on its drafts."""

    recorded: Recorded
    rules: tuple[Verification, ...]

    @property
    def cell(self) -> CellResult:
        return self.recorded.cell

    @property
    def num_positions(self) -> int:
        return self.recorded.terms.num_positions

    @property
    def own_rule(self) -> Verification | None:
        """The cell's own method, if it has a closed form."""
        return recorded_rule(self.cell.record.config["verification"])

    @cached_property
    def estimates(self) -> Estimates:
        """Of every rule and estimator, and of what was accepted."""
        sums = _sums(self.recorded, self.rules)
        return Estimates(sums, self.cell.estimates.num_resamples, self.cell.estimates.confidence)

    def distribution(self, name: str, position: int | None = None) -> tuple[float, Floats]:
        """Value and resampled values of an acceptance length, or of the acceptance at a position 1, 2, ..

        Args:
            name: SAMPLED, or `series_name` of a rule and an estimator.
            position: None for the length.
        """
        if position is not None:
            return self.estimates.ratio(_metric((f"{name}_{position}",), f"drafts_{position}"))
        reached = tuple(f"{name}_{each}" for each in range(1, self.num_positions + 1))
        return self.estimates.ratio(_metric(("drafts_1", *reached), "drafts_1"))

    def estimate(self, name: str, position: int | None = None) -> Estimate:
        """The same with its interval."""
        return self.estimates.with_interval(*self.distribution(name, position))

    def difference(self, first: str, second: str) -> Estimate:
        """Acceptance length of the second less that of the first, on the same drafts."""
        (first_value, first_replicates), (second_value, second_replicates) = map(self.distribution, (first, second))
        return self.estimates.with_interval(second_value - first_value, second_replicates - first_replicates)

    def check(self) -> None:
        """Compare with the expected lengths that the record holds of the same drafts.

        Raises:
            InconsistentRecordError: they differ by more than rounding.
        """
        requests = self.cell.record.requests
        rows = [item.rounds[index].expected_accepted for item in requests for index, _ in measured_drafts(item)]
        lengths = 1 + np.array(rows, dtype=np.float64).mean(axis=0)
        for method, recorded in zip(EXPECTED_METHODS, lengths.tolist(), strict=True):
            rule = next((item for item in self.rules if rule_name(item) == method), None)
            if rule is None:
                continue
            found, _ = self.distribution(series_name(rule, Estimator.given))
            if not abs(found - recorded) <= TOLERANCE:
                raise InconsistentRecordError(
                    f"cell {self.cell.record.cell_id}: expected length {recorded} of {method} from the record, found "
                    f"{found} from its terms; run the cell again"
                )


def replay(recorded: Recorded, rules: Sequence[Verification]) -> Replayed:
    """Prepare a cell, its own method added to the rules where they lack it.

    Raises:
        InconsistentRecordError: record and terms contradict each other.
    """
    own = recorded_rule(recorded.cell.record.config["verification"])
    every = dict.fromkeys([*rules, *([own] if own is not None else [])])
    replayed = Replayed(recorded, tuple(every))
    replayed.check()
    return replayed


def series_name(rule: Verification, estimator: Estimator) -> str:
    """Names a rule's estimator."""
    return f"{rule_name(rule)} {estimator.value}"


def width(estimate: Estimate) -> float:
    """Of its interval."""
    return estimate.high - estimate.low


def num_ended_drafts(cell: CellResult) -> int:
    """Drafts that are not replayed because an end-of-sequence token was drafted.

    Those that the length limit shortens are not among them: the limit is known before anything is drafted.
    """
    num_found = 0
    most = int(cell.record.config["decoding"]["max_new_tokens"])
    for request in cell.record.requests:
        num_emitted = 0
        for item in request.rounds:
            room = most - num_emitted - 1
            num_found += item.num_draft_tokens < item.num_proposed_tokens <= room
            num_emitted += item.num_output_tokens
    return num_found


def _metric(numerators: tuple[str, ...], denominator: str) -> Metric:
    return Metric("", "", "", "length", numerators, denominator)


def _sums(recorded: Recorded, rules: Sequence[Verification]) -> CellSums:
    """Sums over each prompt's drafts; the prompts are all of the cell's, in its order."""
    terms, prompt_ids = recorded.terms, recorded.cell.estimates.sums.prompt_ids
    tables = {"drafts": terms.drafted.astype(np.float64), SAMPLED: _accepted(recorded)}
    for rule in rules:
        tables |= {series_name(rule, item): reaching(terms, rule, item) for item in estimators_of(rule)}
    columns = {
        f"{name}_{position}": column
        for name, table in tables.items()
        for position, column in enumerate(table.T, start=1)
    }
    return CellSums(prompt_ids, sums_by_prompt(recorded, columns), {}, terms.num_positions)


def sums_by_prompt(recorded: Recorded, columns: Mapping[str, Floats]) -> dict[str, Floats]:
    """name -> [P] sums of each column ([D]) over the drafts of each prompt, in the order of the cell's prompts."""
    terms, prompt_ids = recorded.terms, recorded.cell.estimates.sums.prompt_ids
    row_of = {prompt_id: row for row, prompt_id in enumerate(prompt_ids)}
    prompt_of_draft = np.array([row_of[key[0]] for key in terms.keys], dtype=np.int64)[terms.request]
    return {
        name: np.bincount(prompt_of_draft, weights=column, minlength=len(prompt_ids)).astype(np.float64)
        for name, column in columns.items()
    }


def _accepted(recorded: Recorded) -> Floats:
    """[D, K] 1 where the run accepted so many tokens."""
    places = np.arange(1, recorded.terms.num_positions + 1)
    return (num_accepted(recorded)[:, None] >= places).astype(np.float64)


def num_accepted(recorded: Recorded) -> Integers:
    """[D] tokens that the run accepted of each draft."""
    rounds = {item.key: item.rounds for item in recorded.cell.record.requests}
    found = [rounds[key][index].num_accepted_tokens for key, index in _places(recorded.terms)]
    return np.array(found, dtype=np.int64)


def _places(terms: RoundTerms) -> list[tuple[tuple[str, int, int], int]]:
    """(request's key, index of the round) of each draft."""
    requests: Integers = terms.request
    return [(terms.keys[request], index) for request, index in zip(requests, terms.round_index, strict=True)]
