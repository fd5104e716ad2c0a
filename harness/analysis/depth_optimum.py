"""What the best choice of depths would have reached on the rounds and times of a run, beside what each cell reached.

The cells of a family differ in nothing but how many tokens a round drafts. Those of fixed depths, plain decoding among
them, give for each depth K the tokens of a round, L(K), and for each number B of decoding requests the time of a step,
t(B, K), apart for steps that read prompts too. These count where nearly all rounds with drafts are in such steps, as
with many requests in flight: what is read of prompts for each token that is emitted is then the same at every depth.
Plain decoding is left out there unless its steps do so too: requests of one length that begin together also end
together, and their prompts are read in few steps. Then the optimum is over the fixed depths with drafts, and nothing is
bounded by rows. Two optima follow, in tokens per second of the rounds behind a request's first:

- by batch size: at each B the K with the largest B L(K) / t(B, K); no policy that knows B alone is faster.
- by rows: rounds stop at depths of their own, chosen in the light of their rows and draft tokens, at the times
  t(B, d) / B of a round (`harness.analysis.depth_by_rows`, which says what this bounds). For probabilistic verification
  alone, and only where the terms of the deepest fixed cell's drafts are recorded.

Each cell is held against the optimum at its own numbers of requests: the time that its tokens would have taken. Depths
are chosen on the data that they are held against, which overstates the optimum a little.
Shapes: R resamples and the observed sums behind them, P prompts, S kinds of steps, N rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from harness.analysis.cell import CellResult
from harness.analysis.comparison import NOT_COMPARED
from harness.analysis.decode_steps import DecodeRounds, Floats, Integers, decode_rounds
from harness.analysis.depth_by_rows import Paths, least_cost
from harness.analysis.estimates import NOT_AVAILABLE, Estimate
from harness.analysis.intervals import interval, resample_weights
from harness.analysis.ranking import comparable
from harness.analysis.recorded_terms import Recorded
from harness.records.acceptance_terms import RoundTerms
from harness.records.counts import Knowledge

_OF_DEPTH = ("num_speculative_tokens", "depth", "step_times", "min_confidence")
DEPTH_SETTINGS = (*(f"drafting.{name}" for name in _OF_DEPTH), "drafter.confidence")
"""In which the cells of a family may differ."""
MIN_STEPS = 5
"""Of sizes between two powers of two and a depth, for a time of their own, at their mean size; between such sizes times
lie on a line."""
MOSTLY = 0.9
"""Share of the rounds of every fixed depth above 0 that lie in steps with prompts, from which on such steps count."""


class Kind(NamedTuple):
    """Steps that cost the same at one depth."""

    reads_prompts: bool
    size: int
    """Requests that decode."""


@dataclass(frozen=True)
class Reached:
    """What a cell reached beside the optima, in output tokens per second of the steps in which requests decode."""

    cell: CellResult
    tokens_per_s: Estimate
    by_batch: Estimate
    share: Estimate
    """Of the optimum by batch size."""
    by_rows: Estimate
    """NOT_AVAILABLE where terms are not recorded or the method is another."""
    taken: Mapping[int, float]
    """Share of the cell's rounds by the tokens that they drafted."""
    best: Mapping[int, float]
    """Share of them by the depth that is best at their number of requests."""


def depth_families(cells: Sequence[CellResult], recorded: Sequence[Recorded] = ()) -> list[list[Reached]]:
    """Families with two fixed depths at least, plain decoding among them, and a cell whose depths are chosen.

    Args:
        cells: of any runs. Those whose rounds are not known, those that failed and those whose times do not compare
            (`harness.analysis.ranking`) are left out, and families of which a cell has no step in which a request
            decodes.
        recorded: those of them that have terms.
    """
    # rounds under masks have none: the rest would bound other rounds than those of the run
    terms = {_key(item.cell): item.terms for item in recorded if not item.num_masked_drafts}
    found: dict[str, list[CellResult]] = {}
    for cell in cells:
        if not (cell.is_baseline or cell.record.has_failed or cell["tree"]) and _has_rounds(cell):
            found.setdefault(cell.key_without(*NOT_COMPARED, *DEPTH_SETTINGS), []).append(cell)
    families = []
    for line in found.values():
        baseline = line[0].baseline
        family = [*([baseline] if baseline is not None and _has_rounds(baseline) else []), *line]
        timed = comparable(family)
        num_fixed = sum(fixed_depth(cell) is not None for cell in timed.cells)
        if 2 <= num_fixed < len(timed.cells):
            compared = _Family(timed.cells, timed.prompt_ids, terms)
            # such steps are missing where answers have one token
            if all(len(rounds.size) for rounds in compared.rounds):
                families.append(compared.reached())
    return families


def fixed_depth(cell: CellResult) -> int | None:
    """K of a cell all of whose rounds draft K tokens; None where depths are chosen."""
    if cell.is_baseline:
        return 0
    return None if cell["depth"] else int(cell["num_speculative_tokens"])


def _key(cell: CellResult) -> tuple[str, str]:
    return cell["run"], cell.record.cell_id


def _has_rounds(cell: CellResult) -> bool:
    return cell.record.knowledge is Knowledge.rounds


class _Family:
    """Cells that differ in depth alone."""

    def __init__(
        self,
        cells: Sequence[CellResult],
        prompt_ids: Sequence[str],
        terms: Mapping[tuple[str, str], RoundTerms],
    ) -> None:
        self.terms, estimates = terms, cells[0].estimates
        self.confidence = estimates.confidence
        self.rows: Mapping[str, int] = {prompt: row for row, prompt in enumerate(prompt_ids)}
        resampled = resample_weights(self.num_prompts, estimates.num_resamples)
        self.weights: Floats = np.vstack([resampled, np.ones(self.num_prompts)])
        """[R + 1, P]."""
        rounds = [decode_rounds(cell.record.requests, self.rows) for cell in cells]
        among_prompts = [bool(len(each.size)) and each.reads_prompts.mean() >= MOSTLY for each in rounds]
        drafting = [place for place, cell in enumerate(cells) if fixed_depth(cell)]
        left_out = []
        if len(drafting) < 2 or not all(among_prompts[place] for place in drafting):
            rounds = [each.where(~each.reads_prompts) for each in rounds]
        else:
            left_out = [place for place, cell in enumerate(cells) if cell.is_baseline and not among_prompts[place]]
        self.cells = [cell for place, cell in enumerate(cells) if place not in left_out]
        self.rounds = [each for place, each in enumerate(rounds) if place not in left_out]
        found = (zip(rounds.reads_prompts, rounds.size, strict=True) for rounds in self.rounds)
        self.kinds = sorted({Kind(bool(reads), int(size)) for each in found for reads, size in each})

    @property
    def num_prompts(self) -> int:
        return len(self.rows)

    def reached(self) -> list[Reached]:
        """Of each cell, in their order."""
        by_batch, by_rows = self._cost_by_batch, self._cost_by_rows
        return [
            self._reached(cell, rounds, by_batch, by_rows) for cell, rounds in zip(self.cells, self.rounds, strict=True)
        ]

    def _reached(self, cell: CellResult, rounds: DecodeRounds, by_batch: Floats, by_rows: Floats | None) -> Reached:
        of_kinds = (
            rounds.where((rounds.reads_prompts == kind.reads_prompts) & (rounds.size == kind.size))
            for kind in self.kinds
        )
        num_tokens = np.stack([self._sums(each, "num_tokens") for each in of_kinds], axis=1)
        took_s = self._sums(rounds, "seconds")
        total = num_tokens.sum(axis=1)
        best_s = (num_tokens * by_batch).sum(axis=1)
        bound = None if by_rows is None else total / (num_tokens * by_rows).sum(axis=1)
        return Reached(
            cell,
            tokens_per_s=self._estimate(total / took_s),
            by_batch=self._estimate(total / best_s),
            share=self._estimate(best_s / took_s),
            by_rows=NOT_AVAILABLE if bound is None else self._estimate(bound),
            taken=_shares(rounds.num_drafts),
            best=_shares(np.array(list(self._fixed))[self._best_places[self._kinds_of(rounds)]]),
        )

    def _kinds_of(self, rounds: DecodeRounds) -> Integers:
        """[N] the place of each round's kind."""
        places = {kind: place for place, kind in enumerate(self.kinds)}
        pairs = zip(rounds.reads_prompts.tolist(), rounds.size.tolist(), strict=True)
        return np.array([places[Kind(*pair)] for pair in pairs], dtype=np.int64)

    def _sums(self, rounds: DecodeRounds, name: str) -> Floats:
        """[R + 1] sums of a field."""
        sums: Floats = self.weights @ rounds.by_prompt(getattr(rounds, name), self.num_prompts)
        return sums

    def _num_rounds(self, rounds: DecodeRounds) -> Floats:
        """[R + 1]."""
        counts: Floats = self.weights @ rounds.by_prompt(np.ones(len(rounds.size)), self.num_prompts)
        return counts

    def _estimate(self, values: Floats) -> Estimate:
        return Estimate(float(values[-1]), *interval(values[:-1], self.num_prompts, self.confidence))

    @cached_property
    def _fixed(self) -> dict[int, DecodeRounds]:
        """The rounds of each fixed depth, in their order."""
        depths = [(fixed_depth(cell), rounds) for cell, rounds in zip(self.cells, self.rounds, strict=True)]
        return dict(sorted((depth, rounds) for depth, rounds in depths if depth is not None))

    @cached_property
    def _round_s(self) -> dict[int, Floats]:
        """Depth -> [R + 1, S] seconds of a round, its share of the step: t(B, K) / B; infinite where the depth has no
        steps with, or without, prompts."""
        return {
            depth: np.concatenate(
                [self._round_s_of(rounds.where(rounds.reads_prompts == reads), reads) for reads in (False, True)],
                axis=1,
            )
            for depth, rounds in self._fixed.items()
        }

    def _round_s_of(self, rounds: DecodeRounds, reads_prompts: bool) -> Floats:
        sizes = np.array([kind.size for kind in self.kinds if kind.reads_prompts == reads_prompts], dtype=np.int64)
        known, columns = [], []
        groups = np.ceil(np.log2(np.maximum(rounds.size, 1))).astype(np.int64)
        num_steps = np.bincount(groups, weights=1 / rounds.size)
        if not num_steps.size or not sizes.size:
            return np.full((len(self.weights), len(sizes)), np.inf)
        for group in np.flatnonzero(num_steps >= min(MIN_STEPS, num_steps.max())):
            part = rounds.where(groups == group)
            steps = self.weights @ part.by_prompt(1 / part.size, self.num_prompts)
            with np.errstate(divide="ignore", invalid="ignore"):
                mean_s = self._sums(part, "seconds") / steps
            known.append(len(part.size) / steps[-1])
            # a resample without such a step takes the observed mean
            columns.append(np.where(np.isfinite(mean_s), mean_s, mean_s[-1]))
        # [S, known sizes]: times of steps between known sizes lie on the line through both
        lines = np.stack([np.interp(sizes, known, row) for row in np.eye(len(known))], axis=1)
        per_round: Floats = np.stack(columns, axis=1) @ lines.T / sizes
        return per_round

    @cached_property
    def _cost_by_depth(self) -> Floats:
        """[fixed depths, R + 1, S] seconds of a token."""
        costs = []
        for depth, rounds in self._fixed.items():
            length = self._sums(rounds, "num_tokens") / self._num_rounds(rounds)
            costs.append(self._round_s[depth] / length[:, None])
        return np.stack(costs)

    @cached_property
    def _best_places(self) -> Integers:
        """[S] of the best fixed depth of each kind among the fixed depths, chosen on what was observed."""
        places: Integers = self._cost_by_depth[:, -1].argmin(axis=0)
        return places

    @cached_property
    def _cost_by_batch(self) -> Floats:
        """[R + 1, S] seconds of a token at these depths."""
        chosen: Floats = self._cost_by_depth[self._best_places, :, np.arange(len(self.kinds))].T
        return chosen

    @cached_property
    def _cost_by_rows(self) -> Floats | None:
        """[R + 1, S] seconds of a token where every round stops where its rows say; None where that is not known."""
        deepest = max(self.cells, key=lambda cell: fixed_depth(cell) or 0)
        depth, terms = fixed_depth(deepest), self.terms.get(_key(deepest))
        if not depth or terms is None or deepest["verification"] != "probabilistic" or 0 not in self._fixed:
            return None
        paths, known_s = Paths.of(terms, self.rows), np.stack(list(self._round_s.values()), axis=2)
        if not len(paths.prompt) or not np.isfinite(known_s).all():
            return None
        # [fixed depths, K + 1]: times of other depths lie on the line through two fixed ones
        lines = np.stack([np.interp(range(depth + 1), list(self._fixed), row) for row in np.eye(len(self._fixed))])
        costs = [least_cost(paths, seconds @ lines, self.weights) for seconds in known_s.swapaxes(0, 1)]
        return np.stack(costs, axis=1)


def _shares(depths: Integers) -> dict[int, float]:
    """Of each depth among those of some rounds."""
    found, counts = np.unique(depths, return_counts=True)
    return dict(zip(found.tolist(), (counts / counts.sum()).tolist(), strict=True))
