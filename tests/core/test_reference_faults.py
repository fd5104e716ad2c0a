"""`verify` where something is wrong: rows without a distribution, impossible draft tokens, shapes that disagree."""

import pytest
import torch
from scipy import stats

from kernels.contract import Draft, Streams, Verification
from kernels.random.streams import Purpose
from kernels.reference.draw import draw
from kernels.reference.verify import verify
from tests.support.random_round import (
    FALSE_ALARM,
    GREEDY,
    PLAIN,
    SAMPLED_METHODS,
    Method,
    Round,
    sampling_of,
    verification_of,
)

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("method", Method, ids=lambda method: method.value)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf], ids=str)
@pytest.mark.parametrize("row", [0, 2, 3], ids=["first row", "later row", "bonus row"])
def test_target_row_without_a_distribution_is_flagged_when_it_decides(method: Method, value: float, row: int):
    setting = GREEDY if method is Method.greedy else PLAIN
    batch = Round([setting] * 40, [3] * 40, vocab_size=3, seed=2)
    if value == -torch.inf:
        batch.target[1::2, row] = value
    else:
        batch.target[1::2, row, 1] = value
    verdict = batch.verify(verification_of(method))
    assert bool((verdict.num_accepted <= torch.where(torch.arange(40) % 2 == 1, row, 3)).all())
    impossible = (torch.arange(40) % 2 == 1) & (verdict.num_accepted == row)
    assert torch.equal(verdict.invalid, impossible)
    assert bool(impossible.any())
    last = verdict.token_ids.gather(1, verdict.num_accepted[:, None])[:, 0]
    assert last[impossible].tolist() == [0] * int(impossible.sum())
    assert bool(((last >= 0) & (last < 3)).all())


@pytest.mark.parametrize(
    "method", [Method.probabilistic, Method.block, Method.lenient, Method.pr35461], ids=lambda m: m.value
)
def test_draft_row_without_a_distribution_cuts_the_draft(method: Method):
    num_rows = 20_000
    target = torch.tensor([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1], [0.1, 0.2, 0.7]]).log().repeat(num_rows, 1)
    cache = torch.tensor([[[0.2, 0.3, 0.5], [torch.nan, 0.1, 0.2]]]).log().expand(num_rows, 2, 3)
    streams = Streams(torch.arange(num_rows), torch.full((num_rows,), 3), torch.zeros(num_rows, dtype=torch.long))
    sampling = sampling_of(*[PLAIN] * num_rows)
    first = draw(cache[:, 0], sampling, streams, Purpose.draft).token_ids
    draft = Draft(torch.stack([first, torch.ones_like(first)], dim=1), torch.full((num_rows,), 2), cache)
    verdict = verify(target, draft, sampling, Verification(method), streams)
    assert bool((verdict.num_accepted <= 1).all())
    assert torch.equal(verdict.invalid, verdict.num_accepted == 1)
    emitted = verdict.token_ids[verdict.invalid, 1]
    assert stats.chisquare(torch.bincount(emitted), torch.tensor([0.6, 0.3, 0.1]) * len(emitted)).pvalue > FALSE_ALARM


@pytest.mark.parametrize(
    "method", [Method.probabilistic, Method.block, Method.lenient], ids=lambda method: method.value
)
@pytest.mark.parametrize("cause", ["no draft probability", "not in the draft vocabulary"])
def test_draft_token_that_cannot_have_been_drawn_is_cut_and_flagged(method: Method, cause: str):
    target = torch.tensor([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]]).log().repeat(200, 1)
    streams = Streams(torch.arange(200), torch.full((200,), 3), torch.zeros(200, dtype=torch.long))
    token_ids, lengths = torch.full((200, 1), 2), torch.ones(200, dtype=torch.long)
    if cause == "no draft probability":
        draft = Draft(token_ids, lengths, torch.tensor([[[0.0, 0.0, -torch.inf]]]).expand(200, 1, 3))
    else:
        draft = Draft(token_ids, lengths, torch.zeros(200, 1, 2), None, torch.tensor([1, 0]))
    verdict = verify(target, draft, sampling_of(*[PLAIN] * 200), Verification(method), streams)
    assert verdict.num_accepted.tolist() == [0] * 200
    assert bool(verdict.invalid.all())
    assert sorted(verdict.token_ids[:, 0].unique().tolist()) == [0, 1, 2]


@pytest.mark.parametrize("method", SAMPLED_METHODS, ids=lambda method: method.value)
@pytest.mark.parametrize("token", [-2, 3, 10**9])
def test_draft_token_outside_the_vocabulary_is_never_emitted(method: Method, token: int):
    batch = Round([PLAIN, GREEDY] * 10, [2] * 20, vocab_size=3)
    batch.token_ids[:, 1] = token
    verdict = batch.verify(verification_of(method))
    assert bool((verdict.num_accepted <= 1).all())
    assert bool((verdict.token_ids < 3).all())


@pytest.mark.parametrize("token", [-2, 3, 10**9])
def test_batch_of_greedy_rows_flags_a_draft_token_outside_the_vocabulary_where_it_gets_there(token: int):
    """All-greedy batches take a way of their own; a padded column after a shorter draft is no draft token."""
    batch = Round([GREEDY] * 40, [2, 1] * 20, vocab_size=3, seed=5)
    batch.token_ids[:, 1] = token
    verdict = batch.verify(Verification(Method.probabilistic))
    assert torch.equal(verdict.invalid, (verdict.num_accepted == 1) & (batch.lengths == 2))
    assert bool(verdict.invalid.any()) and bool((verdict.num_accepted == 1)[~verdict.invalid].any())


@pytest.mark.parametrize(
    "method", [Method.probabilistic, Method.block, Method.lenient, Method.strict], ids=lambda m: m.value
)
def test_residual_that_underflows_emits_from_the_target(method: Method, monkeypatch: pytest.MonkeyPatch):
    """Equal distributions leave no residual; a rejection is forced through the uniform number."""
    ones = torch.ones(64, dtype=torch.float64)
    monkeypatch.setattr(
        "kernels.random.streams.uniform",
        lambda seeds, *_: ones[:, None].expand(64, 2) if seeds.dim() == 2 else torch.linspace(0.01, 0.99, 64).double(),
    )
    logits = torch.tensor([0.0, 1.0, 2.0]) if method is not Method.strict else torch.tensor([-900.0, -900.0, 0.0])
    draft = Draft(torch.full((64, 2), 2), torch.full((64,), 2), logits.expand(64, 2, 3))
    streams = Streams(*[torch.zeros(64, dtype=torch.long)] * 3)
    verification = Verification(method)
    verdict = verify(logits.expand(64 * 3, 3), draft, sampling_of(*[PLAIN] * 64), verification, streams)
    assert verdict.num_accepted.tolist() == [0] * 64
    assert not verdict.invalid.any()
    emitted = verdict.token_ids[:, 0].unique().tolist()
    assert emitted == ([2] if method is Method.strict else [0, 1, 2])


def test_rows_that_do_not_add_up_are_an_error():
    draft = Draft(torch.zeros(2, 3, dtype=torch.long), torch.tensor([3, 1]))
    streams = Streams(*[torch.zeros(2, dtype=torch.long)] * 3)
    for method, setting in [(Method.block, PLAIN), (Method.greedy, GREEDY)]:
        with pytest.raises(ValueError, match="6 in all; found 7; padded to 4 rows per request they would be 8"):
            verify(torch.zeros(7, 5), draft, sampling_of(setting, setting), Verification(method), streams)


def test_more_drafts_than_columns_are_an_error():
    draft = Draft(torch.zeros(1, 2, dtype=torch.long), torch.tensor([3]))
    streams = Streams(*[torch.zeros(1, dtype=torch.long)] * 3)
    with pytest.raises(ValueError, match=r"must lie in 0..2, the width of token_ids; found \[3\]"):
        verify(torch.zeros(4, 5), draft, sampling_of(PLAIN), Verification(Method.strict), streams)


def test_greedy_verification_refuses_a_temperature():
    batch = Round([GREEDY, (0.5, 0, 1.0, 0.0)], [2, 2], vocab_size=7)
    with pytest.raises(ValueError, match=r"only at temperature 0, found temperatures up to 0\.5"):
        batch.verify(Verification(Method.greedy))


def test_synthetic_without_a_rate_for_each_position_is_an_error():
    batch = Round([PLAIN], [3], vocab_size=5)
    with pytest.raises(ValueError, match="all 3 positions of the draft; found 2 rates"):
        batch.verify(Verification(Method.synthetic, rates=(0.5, 0.2)))
