"""Which cells may be ranked by their throughput, on which prompts, and how each compares with the fastest.

Left out are cells in which requests failed, those whose speedup is impossible, and those that no session measured
beside the others: times of two sessions do not compare. The others are ranked on the prompts that one and the same
session measured in all of them.
This module does not know how a rank is printed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from harness.analysis.cell import CellResult
from harness.analysis.estimates import Estimate, Estimates, paired_ratio

THROUGHPUT = "output_tokens_per_s"
FAILED_REQUESTS, IMPOSSIBLE, OTHER_SESSION = "requests failed", "impossible speedup", "other session"
"""Why a cell is left out."""


@dataclass(frozen=True)
class Comparable:
    """Cells whose times compare."""

    cells: tuple[CellResult, ...]
    """As they were given."""
    prompt_ids: tuple[str, ...]
    """That all of them measured, each in one session."""
    left_out: tuple[tuple[CellResult, str], ...]
    """With the reason."""

    @property
    def says_nothing(self) -> bool:
        """Whether cells were left out and no drafter is left, beside which plain decoding could be the fastest."""
        return bool(self.left_out) and all(cell.is_baseline for cell in self.cells)


def comparable(cells: Sequence[CellResult]) -> Comparable:
    """The cells of one setting whose times compare; the baseline is among them wherever it can be.

    Args:
        cells: that have not failed, the baseline among them where there is one.
    """
    left_out = {cell.record.cell_id: IMPOSSIBLE for cell in cells if cell.is_impossible}
    left_out |= {cell.record.cell_id: FAILED_REQUESTS for cell in cells if cell.has_failed_requests}
    kept = [cell for cell in cells if cell.record.cell_id not in left_out]
    shared: set[str] = set()
    if kept:
        beside = _beside(kept)
        # of cells that share nothing with all others together, those go first that share least with the reference
        for cell in sorted(kept, key=lambda item: -len(beside[item.record.cell_id])):
            found = beside[cell.record.cell_id]
            common = shared & found if shared else found
            if common:
                shared = common
            else:
                left_out[cell.record.cell_id] = OTHER_SESSION
        kept = [cell for cell in kept if cell.record.cell_id not in left_out]
    reasons = tuple((cell, left_out[cell.record.cell_id]) for cell in cells if cell.record.cell_id in left_out)
    return Comparable(tuple(kept), tuple(sorted(shared)), reasons)


def _beside(cells: Sequence[CellResult]) -> Mapping[str, set[str]]:
    """By id, the prompts that a cell measured in the session in which the reference did.

    The reference is the baseline if another cell was measured beside it, else the cell with most beside it.
    """
    found = [{cell.record.cell_id: _common(reference, cell) for cell in cells} for reference in cells]
    counts = [sum(map(bool, each.values())) for each in found]
    baselines = [place for place, cell in enumerate(cells) if cell.is_baseline and counts[place] > 1]
    return found[baselines[0] if baselines else counts.index(max(counts))]


def _common(first: CellResult, second: CellResult) -> set[str]:
    mine, others = (
        set(zip(cell.estimates.sums.prompt_ids, cell.estimates.sums.sessions, strict=True)) for cell in (first, second)
    )
    return {prompt_id for prompt_id, _ in mine & others}


@dataclass(frozen=True)
class Ranking:
    """Comparable cells in the light of the fastest of them."""

    compared: Comparable

    @cached_property
    def best(self) -> CellResult | None:
        """The one with the highest throughput that was observed; None where that says nothing."""
        if self.compared.says_nothing or not self.compared.cells:
            return None
        return max(
            self.compared.cells, key=lambda cell: self._on_common[cell.record.cell_id].distribution(THROUGHPUT)[0]
        )

    @cached_property
    def _on_common(self) -> dict[str, Estimates]:
        prompt_ids = self.compared.prompt_ids
        return {cell.record.cell_id: _restricted(cell.estimates, prompt_ids) for cell in self.compared.cells}

    def ratio(self, cell: CellResult) -> Estimate:
        """Throughput of a ranked cell over that of the best."""
        assert self.best is not None
        first, second = (self._on_common[item.record.cell_id] for item in (self.best, cell))
        return paired_ratio(first, second, THROUGHPUT)

    def equals(self, cell: CellResult) -> bool:
        """Whether a ranked cell is not told apart from the best: the interval of their ratio is not below 1."""
        return not self.ratio(cell).high < 1


def _restricted(estimates: Estimates, prompt_ids: tuple[str, ...]) -> Estimates:
    if estimates.sums.prompt_ids == prompt_ids:
        return estimates
    return Estimates(estimates.sums.take(prompt_ids), estimates.num_resamples, estimates.confidence)
