"""How far a drafter's logits must be off for a wanted mean number of accepted tokens, found in closed form.

Probabilistic verification accepts position i with probability sum_x min(p_i(x), q_i(x)) before its draft token is
drawn, so K = 3 drafts of a request keep sum_i prod_{j<=i} of that on average (kernels.reference.acceptance). At
temperature 0 a position is accepted iff both argmaxes are one token.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch

from harness.checks.kernel_bench.case import Acceptance, Case
from harness.checks.kernel_bench.rows import drafted_rows, rows_of, sampling_of
from kernels.contract import Draft, Streams
from kernels.random.streams import Purpose
from kernels.reference.acceptance import acceptance_terms
from kernels.reference.draw import draw

GOALS = {Acceptance.low: 0.3, Acceptance.mid: 1.5, Acceptance.high: 2.7}
"""Mean accepted tokens of K = 3, by probabilistic verification."""
WIDTH, NUM_REQUESTS = 3, 64
ELEMENTS = 2**24
"""Logits tried at most, so that a large vocabulary is tried on fewer requests."""
NUM_HALVINGS, LARGEST_ERROR, SEED = 12, 12.0, 1
TRIED = Case()
FIELDS = ("acceptance", "vocab_size", "dtype", "temperature", "truncation", "rows")
"""Of a case, what the error follows from."""


def error_for(case: Case, device: torch.device) -> float:
    """Standard deviation of the drafter's error, in logits; fewer tokens are accepted the larger it is."""
    # what else sets cases apart does not change it
    return _error_for(replace(TRIED, **{name: getattr(case, name) for name in FIELDS}), device)


@cache
def _error_for(case: Case, device: torch.device) -> float:
    low, high = 0.0, LARGEST_ERROR
    for _ in range(NUM_HALVINGS):
        error = (low + high) / 2
        accepted = mean_accepted(error, case, device)
        low, high = (error, high) if accepted > GOALS[case.acceptance] else (low, error)
    return (low + high) / 2


def mean_accepted(error: float, case: Case, device: torch.device) -> float:
    """Expected accepted tokens of K = 3 with a drafter of this error; the same random rows for every error."""
    generator = torch.Generator(device).manual_seed(SEED)
    vocab_size = case.vocab_size
    num_requests = max(4, min(NUM_REQUESTS, ELEMENTS // (vocab_size * (WIDTH + 1))))
    rows = rows_of(case.rows, num_requests * (WIDTH + 1), vocab_size, generator)
    logits_type = getattr(torch, case.dtype.value)
    rows = rows.view(num_requests, WIDTH + 1, vocab_size)
    proposed = drafted_rows(rows[:, :WIDTH].flatten(0, 1), error, generator).to(logits_type)

    index = torch.arange(len(proposed), device=device)
    drawn = draw(
        proposed,
        sampling_of(len(proposed), case.temperature, case.truncation, device),
        Streams(index, torch.zeros_like(index), torch.zeros_like(index)),
        Purpose.draft,
    )
    draft = Draft(
        token_ids=drawn.token_ids.view(num_requests, WIDTH),
        num_draft_tokens=torch.full((num_requests,), WIDTH, device=device),
        logits=proposed.view(num_requests, WIDTH, vocab_size),
    )
    sampling = sampling_of(num_requests, case.temperature, case.truncation, device)
    terms = acceptance_terms(rows.flatten(0, 1).to(logits_type), draft, sampling)
    assert terms.overlap is not None
    return float(terms.overlap.cumprod(dim=1).sum(dim=1).mean())
