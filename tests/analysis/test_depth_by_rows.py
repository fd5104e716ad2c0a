"""The bound of policies that choose depths: no policy is faster, whatever it knows."""

from collections import Counter
from itertools import product

import numpy as np
import pytest

from harness.analysis.depth_by_rows import Paths, best_stops, least_cost
from harness.records.acceptance_terms import DraftTerms, RequestTerms, collect_terms
from harness.records.term_columns import COLUMNS

QUARTERS = 4
"""Draft probabilities are multiples of a quarter, so that a recording can hold each draft as often as it is drawn."""


class Chain:
    """Rows of two positions over V tokens: those of the second depend on the first token."""

    def __init__(self, first, second):
        self.target, self.draft = first
        self.targets, self.drafts = second

    def recording(self):
        """Every draft of two tokens, as often in 16 as it is drawn."""
        found = []
        for tokens in product(range(len(self.draft)), repeat=2):
            chances = self.draft[tokens[0]], self.drafts[tokens[0]][tokens[1]]
            rows = (self.target, self.draft), (self.targets[tokens[0]], self.drafts[tokens[0]])
            values = {name: np.zeros(2) for name, column in COLUMNS.items() if column.is_required} | {
                "target_prob": np.array([row[0][token] for row, token in zip(rows, tokens, strict=True)]),
                "draft_prob": np.array(chances),
                "overlap": np.array([np.minimum(*row).sum() for row in rows]),
            }
            found += [values] * round(chances[0] * chances[1] * QUARTERS**2)
        assert len(found) == QUARTERS**2
        drafts = [DraftTerms(index, values) for index, values in enumerate(found)]
        return collect_terms("x", [RequestTerms.of(("a", 0, 0), drafts)])

    def emitted(self, drafts_first, goes_on):
        """Expected tokens of a round, and its chances to draft 0, 1, 2 tokens, from every event that can happen.

        goes_on: first tokens behind which the policy drafts a second.
        """
        depths = Counter()
        if not drafts_first:
            return 1.0, Counter({0: 1.0})
        tokens = 0.0
        for first, chance in enumerate(self.draft):
            depth = 1 + (first in goes_on)
            depths[depth] += chance
            for is_first, weight in self.outcomes(self.target, self.draft, first):
                if not is_first or depth == 1:
                    tokens += chance * weight * (1 + is_first)
                    continue
                for second, likely in enumerate(self.drafts[first]):
                    for is_second, also in self.outcomes(self.targets[first], self.drafts[first], second):
                        tokens += chance * weight * likely * also * (2 + is_second)
        return tokens, depths

    @staticmethod
    def outcomes(target, draft, token):
        """(accepted, its probability), both ways, of probabilistic verification."""
        passes = min(1.0, target[token] / draft[token]) if draft[token] else 0.0
        return (True, passes), (False, 1 - passes)

    def best_rate(self, times):
        """Tokens per second of the best policy that knows all rows and the tokens drafted before."""
        rates = []
        size = len(self.draft)
        for drafts_first, *behind in product((False, True), repeat=1 + size):
            tokens, depths = self.emitted(drafts_first, {token for token in range(size) if behind[token]})
            rates.append(tokens / sum(times[depth] * chance for depth, chance in depths.items()))
        return max(rates)

    def bound(self, times):
        paths = Paths.of(self.recording(), {"a": 0})
        (cost,) = least_cost(paths, np.array([times], dtype=np.float64), np.ones((1, 1)))
        return 1 / cost


def test_the_bound_of_free_drafts_is_what_they_emit():
    """Overlap .5, then 1 behind token A, which the target always takes, and 0 behind B, which it never does: two free
    drafts emit 2 tokens. Would catch survival as the product of overlaps, which is 1.75."""
    chain = Chain(([1, 0], [0.5, 0.5]), ([[1, 0], [1, 0]], [[1, 0], [0, 1]]))
    tokens, depths = chain.emitted(True, {0, 1})
    assert tokens == 2.0 and depths == {2: 1.0}
    assert chain.bound([1, 1, 1]) == pytest.approx(2.0)
    # behind B a second draft is never worth its time
    assert chain.bound([1, 1.1, 1.2]) == pytest.approx(2.0 / 1.15) == chain.best_rate([1, 1.1, 1.2])


def test_no_policy_is_faster_than_the_bound():
    """All 16 policies over 3 tokens, tried out on rows of every kind, also where drafts are free. Would catch weights
    of positions without the ratios of the tokens before."""
    generator = np.random.default_rng(3)
    gaps = []

    def draft_row():
        return generator.multinomial(QUARTERS, [1 / 3] * 3) / QUARTERS

    for _ in range(300):
        first = generator.dirichlet([0.4] * 3), draft_row()
        second = generator.dirichlet([0.4] * 3, size=3), [draft_row() for _ in range(3)]
        chain = Chain(first, second)
        times = 1 + np.concatenate([[0], generator.choice([0, 0.1, 0.3], size=2)]).cumsum()
        gaps.append(chain.bound(times) / chain.best_rate(times) - 1)
        full = chain.emitted(True, {0, 1, 2})[0]
        assert chain.bound([1, 1, 1]) == pytest.approx(full), "free drafts are all worth it"
    assert min(gaps) > -1e-9
    assert np.median(gaps) < 0.05 and max(gaps) > 0.01, "hindsight is worth something, and not much here"


def test_dinkelbach_finds_the_best_of_all_stops():
    """All stops of 4 rounds of depth 3, tried out."""
    generator = np.random.default_rng(5)
    for _ in range(20):
        worth = generator.uniform(size=(4, 3)).cumprod(axis=1)
        times = 1 + generator.uniform(0, 0.6, size=4).cumsum()
        tokens = np.concatenate([np.ones((4, 1)), 1 + worth.cumsum(axis=1)], axis=1)

        def ratio(stops, tokens=tokens, times=times):
            return sum(tokens[row, stop] for row, stop in enumerate(stops)) / sum(times[stop] for stop in stops)

        assert ratio(best_stops(worth, times)) == pytest.approx(max(map(ratio, product(range(4), repeat=4))))


def test_resamples_have_prompts_and_times_of_their_own():
    """Two prompts: drafts are worth their time for the first only. Would catch observed times in each."""
    paths = Paths(np.array([0, 1, 1]), np.array([[1.0], [0.0], [0.0]]))
    times = np.array([[1.0, 3.0], [1.0, 1.2], [1.0, 1.2]])
    weights = np.array([[2.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
    # chosen on the last: the first round drafts, the others do not
    assert least_cost(paths, times, weights) == pytest.approx([3.0 / 2, 1.0, (1.2 + 2) / (2 + 2)])
