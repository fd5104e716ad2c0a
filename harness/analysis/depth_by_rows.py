"""How fast rounds could have been had each stopped where its rows and draft tokens say: a bound of the policies that
choose depths, from the terms that a run recorded of its drafts.

Draft i of a round adds, given the tokens before it, the accepted tokens

    w_i = prod_{j < i} min(1, p_j(X_j) / q_j(X_j)) sum_x min(p_i(x), q_i(x))

under probabilistic verification. A policy decides in front of each draft token whether to draft it. It may know all
rows up to there, the target's too, and the tokens X_1 .. X_{i-1}, but not X_i, or verification is not lossless
(kernels.depth); so a policy that stops at depth d emits E[1 + w_1 + .. + w_d] tokens. Here d is chosen in hindsight,
with all rows and tokens of the round known, which is no worse: Dinkelbach's iteration finds the stops with the largest
ratio of E[1 + w_1 + .. + w_d] to E[t_d], seconds of a round with d drafts; with the ratio lambda, a round stops where
1 + w_1 + .. + w_d - lambda t_d is largest. Policies, which do not see the target's rows or later tokens, need not come
near.

It bounds policies that draft K tokens at most, K being what the recorded rounds drafted, and assumes that

- rounds begin at the contexts of the recorded ones, of which those with an end of sequence in the draft, or cut by the
  length limit, have no terms;
- a round with d drafts takes t_d seconds whatever the others in its step draft.

Source: Dinkelbach, On nonlinear fractional programming, Management Science 13 (1967).
Shapes: N recorded rounds, K their draft tokens, R resamples and the observed sums behind them, P prompts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from harness.records.acceptance_terms import Floats, Integers, RoundTerms

MAX_ITERATIONS = 50


@dataclass(frozen=True)
class Paths:
    """The drafts of some rounds."""

    prompt: Integers
    """[N] row of the prompt."""
    worth: Floats
    """[N, K] w_1 .. w_K; 0 where a round has no token, so that none stops behind it."""

    @classmethod
    def of(cls, terms: RoundTerms, rows: Mapping[str, int]) -> Paths:
        """Those of a cell whose prompts have a row."""
        prompt = np.array([rows.get(prompt_id, -1) for prompt_id, *_ in terms.keys], dtype=np.int64)[terms.request]
        draft_prob = terms.of_positions("draft_prob")
        possible = draft_prob > 0
        passing = np.minimum(1.0, terms.of_positions("target_prob") / np.where(possible, draft_prob, 1.0)) * possible
        worth = terms.of_positions("overlap")
        worth[:, 1:] *= passing[:, :-1].cumprod(axis=1)
        return cls(prompt[prompt >= 0], worth[prompt >= 0])


def least_cost(paths: Paths, times: Floats, weights: Floats) -> Floats:
    """Seconds of a token at the best stops; they are chosen on what was observed.

    Args:
        paths: one at least.
        times: [R, K + 1] or wider, seconds of a round with 0, 1, .. drafts.
        weights: [R, P] of the prompts.

    Returns:
        [R] float64.
    """
    num_prompts, num_depths = weights.shape[1], paths.worth.shape[1] + 1
    times = times[:, :num_depths]
    stops = best_stops(paths.worth, times[-1])
    emitted = _tokens(paths.worth)[np.arange(len(stops)), stops]
    tokens = weights @ np.bincount(paths.prompt, weights=emitted, minlength=num_prompts)
    counts = np.bincount(paths.prompt * num_depths + stops, minlength=num_prompts * num_depths)
    seconds = (weights @ counts.reshape(num_prompts, num_depths) * times).sum(axis=1)
    cost: Floats = seconds / tokens
    return cost


def best_stops(worth: Floats, times: Floats) -> Integers:
    """The depths at which the ratio of all tokens to all seconds is the largest.

    Args:
        worth: [N, K] accepted tokens that the drafts add.
        times: [K + 1] seconds of a round with 0, 1, .. K drafts, positive.

    Returns:
        [N] int64, 0 .. K.
    """
    tokens, rows = _tokens(worth), np.arange(len(worth))
    rate, stops = 0.0, np.zeros(len(worth), dtype=np.int64)
    for _ in range(MAX_ITERATIONS):
        stops = (tokens - rate * times).argmax(axis=1)
        before, rate = rate, float(tokens[rows, stops].sum() / times[stops].sum())
        if rate <= before * (1 + 1e-12):
            break
    return stops


def _tokens(worth: Floats) -> Floats:
    """[N, K + 1] expected tokens of rounds that stop at 0, 1, .. K drafts."""
    return np.concatenate([np.ones((len(worth), 1)), 1 + worth.cumsum(axis=1)], axis=1)
