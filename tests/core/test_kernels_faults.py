"""The verification kernels where something is wrong: flagged as the reference flags it, never an id outside."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.contract import Draft, RowStats, Verification, VerificationResult
from kernels.random.streams import Purpose
from kernels.reference.draw import draw as reference_draw
from tests.support.kernel_rounds import (
    DEVICE,
    KernelRound,
    always,
    checked_verdict,
    draft_reading_methods,
    kernel_round,
    sampled_methods,
)
from tests.support.random_round import GREEDY, PLAIN, Method, Setting, verification_of

NAN, INF = torch.nan, torch.inf
FIRST_VALUES = pytest.mark.parametrize(
    "values", always((NAN, INF, -INF, NAN), on_a_gpu=[(INF, -INF, NAN, INF), (-INF, NAN, INF, -INF)]), ids=str
)
"""What spoils a row of each request: every value comes first once, where all methods get as far."""


def check(batch: KernelRound, method: Method) -> VerificationResult:
    """The kernels' verdict, after it has been compared with the reference's and with the vocabulary."""
    found = checked_verdict(batch, method)
    assert bool((found.token_ids < batch.target_logits.shape[1]).all())
    return found


def spoil(row: Tensor, value: float) -> None:
    """Leave a row without a distribution: one entry of NaN or +inf, or nothing but -inf."""
    row[... if value == -torch.inf else 17] = value


@pytest.mark.parametrize(
    "method", always(Method.block, Method.coupled, Method.greedy, on_a_gpu=Method), ids=lambda method: method.value
)
@FIRST_VALUES
def test_target_rows_without_a_distribution(method: Method, values: tuple[float, ...]):
    """Request r loses row r; the last request loses none."""
    setting = GREEDY if method is Method.greedy else PLAIN
    batch = kernel_round([setting, setting, GREEDY, setting, setting], [3] * 5, 63, seed=1)
    rows = batch.target_logits.view(5, 4, 63)
    for request, value in enumerate(values):
        spoil(rows[request, request], value)
    verdict = check(batch, method)
    assert bool(verdict.invalid[0])
    assert not bool(verdict.invalid[4])


@draft_reading_methods(Method.block)
@FIRST_VALUES
def test_draft_rows_without_a_distribution(method: Method, values: tuple[float, ...]):
    batch = kernel_round([PLAIN, PLAIN, (0.7, 0, 1.0, 0.0), PLAIN], [3] * 4, 63, seed=2)
    cache, mapping = batch.draft.logits, batch.draft.idx_mapping
    assert cache is not None and mapping is not None
    for request, value in enumerate(values[:3]):
        spoil(cache[mapping[request], request], value)
    assert bool(check(batch, method).invalid[0])


@sampled_methods(Method.block)
@pytest.mark.parametrize("one_hot", [False, True], ids=["cached", "one-hot"])
def test_draft_tokens_outside_the_vocabulary(method: Method, one_hot: bool):
    batch = kernel_round([PLAIN, PLAIN, GREEDY, PLAIN, PLAIN], [3] * 5, 63, one_hot=one_hot, seed=3)
    for request, token in enumerate([-1, 63, 2**31, -(2**40), 10**12]):
        batch.draft.token_ids[request, request % 3] = token
    check(batch, method)


@draft_reading_methods(Method.block)
@pytest.mark.parametrize("kind", ["mapped", "leading"])
def test_draft_tokens_that_the_drafter_does_not_know(method: Method, kind: str):
    ids = torch.arange(62, 20, -2)
    batch = kernel_round([PLAIN] * 3, [2] * 3, 63, draft_vocab=ids if kind == "mapped" else 30, seed=4)
    unknown = 21 if kind == "mapped" else 40
    batch.draft.token_ids[0, 0] = unknown
    batch.draft.token_ids[1, 1] = unknown
    assert bool(check(batch, method).invalid[0])


@draft_reading_methods(Method.block)
@pytest.mark.parametrize("setting", [PLAIN, (1.0, 5, 1.0, 0.0), (1.0, 0, 0.5, 0.0)], ids=["-inf", "top-k", "top-p"])
def test_draft_tokens_of_probability_zero(method: Method, setting: Setting):
    batch = kernel_round([setting] * 3, [2] * 3, 63, seed=5)
    cache, mapping = batch.draft.logits, batch.draft.idx_mapping
    assert cache is not None and mapping is not None
    for request, index in ((0, 0), (1, 1)):
        row = cache[mapping[request], index]
        batch.draft.token_ids[request, index] = row.argmin()
        if setting == PLAIN:
            row[row.argmin()] = -torch.inf
    assert bool(check(batch, method).invalid[0])


@sampled_methods(Method.block, Method.coupled)
def test_banned_tokens(method: Method):
    """Rows with -inf for most tokens, whole chunks among them, and the drafts among those that are left."""
    batch = kernel_round([PLAIN, (0.7, 3, 1.0, 0.0), GREEDY], [2] * 3, 4500, seed=6)
    left = torch.tensor([2500, 2501, 2600, 3000, 4090, 4095], device=DEVICE)
    banned = torch.ones(4500, dtype=torch.bool, device=DEVICE)
    banned[left] = False
    batch.target_logits[:, banned] = -torch.inf
    batch.draft.token_ids[:] = left[:2]
    assert batch.draft.logits is not None
    verdict = check(batch, method)
    assert bool(torch.isin(verdict.token_ids[verdict.token_ids >= 0], left).all())


@sampled_methods(Method.block, Method.strict)
def test_rows_with_all_mass_on_one_token(method: Method):
    """The last uniform of a residual must not fall after the only token that has mass."""
    batch = kernel_round([PLAIN] * 4, [2] * 4, 2100, seed=7)
    rows = batch.target_logits.view(4, 3, 2100)
    rows[:2] = -torch.inf
    rows[0, :, 2099] = 0.0
    rows[1, :, 0] = 0.0
    rows[2:] -= 200.0
    rows[2, :, 2099] = 0.0
    rows[3, :, 0] = 0.0
    verdict = check(batch, method)
    last = verdict.token_ids.gather(1, verdict.num_accepted[:, None])[:, 0]
    if method in (Method.probabilistic, Method.block, Method.coupled, Method.strict):
        assert last.tolist() == [2099, 0, 2099, 0]


def test_a_token_of_the_residual_is_never_the_rejected_one_of_a_one_hot_draft():
    batch = kernel_round([PLAIN] * 8, [1] * 8, 3, one_hot=True, seed=8)
    batch.target_logits[0::2] = torch.tensor([0.0, -1.0, -2.0], device=DEVICE)
    batch.draft.token_ids[:] = 2
    verdict = check(replace(batch, draft=Draft(batch.draft.token_ids, batch.draft.num_draft_tokens)), Method.strict)
    rejected = verdict.num_accepted == 0
    assert bool(rejected.any())
    assert bool((verdict.token_ids[rejected, 0] != 2).all())


@pytest.mark.parametrize("method", [Method.probabilistic, Method.block], ids=lambda method: method.value)
def test_a_residual_without_mass_falls_back_to_the_target(method: Method):
    """Statistics that make every token a million times as likely to be proposed, so that [p - q]+ is 0 throughout."""
    batch = kernel_round([PLAIN] * 4, [1] * 4, 2500, seed=9)
    cache = batch.draft.logits
    assert cache is not None
    maximum = cache.amax(dim=2)
    normalizer = (cache - maximum[:, :, None]).double().exp().sum(dim=2)
    stats = RowStats(maximum, normalizer * 1e-6, torch.full_like(maximum, -torch.inf))
    verdict = replace(batch, draft=replace(batch.draft, row_stats=stats)).found(verification_of(method))
    assert verdict.num_accepted.tolist() == [0] * 4
    first_rows = batch.target_logits[::2]
    expected = reference_draw(first_rows, batch.sampling, batch.streams, Purpose.residual)
    assert verdict.token_ids[:, 0].tolist() == expected.token_ids.tolist()


@pytest.mark.parametrize(
    ("setting", "lengths"),
    [(PLAIN, [2, 0, 2, -1]), ((0.7, 3, 0.9, 0.0), [2, 0, 2, -1]), (PLAIN, [0, 0, 0, 0])],
    ids=["sampled", "truncated", "nothing drafted"],
)
def test_greedy_verification_flags_a_temperature(setting: Setting, lengths: list[int]):
    """Would catch sampling under the name of greedy; a padded slot and a request at temperature 0 are not touched."""
    batch = kernel_round([setting, setting, GREEDY, setting], lengths, 63, one_hot=True, seed=10)
    verdict = batch.found(Verification(Method.greedy))
    is_padded = lengths[3] < 0
    assert verdict.invalid.tolist() == [True, True, False, not is_padded]
    assert verdict.num_accepted[[0, 1, 3]].tolist() == [0, 0, 0]
    assert bool((verdict.token_ids[:3, 0] >= 0).all()) and bool((verdict.token_ids < 63).all())
    expected = batch.expected(Verification(Method.strict))
    assert verdict.token_ids[2].tolist() == expected.token_ids[2].tolist()
