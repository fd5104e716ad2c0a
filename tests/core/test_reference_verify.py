"""`verify` on whole batches: mixed settings, ragged drafts, caches, and rules that coincide."""

from collections.abc import Callable

import pytest
import torch
from scipy import stats

from kernels.contract import Draft, Sampling, Streams, TokenMask, Verification, VerificationResult
from kernels.methods import Guarantee, MethodTraits, OwnMethod, Rule
from kernels.random.streams import Purpose
from kernels.reference.draw import draw
from kernels.reference.odds import Odds
from kernels.reference.proposal import Proposal
from kernels.reference.truncation import sampling_rows
from kernels.reference.verify import verify
from tests.support.own_methods import LOSSY, LOSSY_TO_LAST_SUCCESS
from tests.support.random_round import (
    FALSE_ALARM,
    GREEDY,
    PLAIN,
    SAMPLED_METHODS,
    SHARES_NOISE,
    Method,
    Round,
    Setting,
    sampling_of,
    verification_of,
)

pytestmark = pytest.mark.fast

MIXED = [
    PLAIN,
    GREEDY,
    (0.7, 0, 1.0, 0.0),
    (1.0, 20, 1.0, 0.0),
    (1.0, 0, 0.9, 0.0),
    (0.0, 5, 0.9, 0.1),
    (1.2, 0, 1.0, 0.05),
    (0.8, 30, 0.8, 0.02),
    PLAIN,
    PLAIN,
]


MIXED_LENGTHS = [3, 3, 2, 3, 3, 1, 3, 2, 0, 1]


def mixed_round(method: Method) -> Round:
    return Round(MIXED * 2, MIXED_LENGTHS * 2, shared_noise=method in SHARES_NOISE)


@pytest.mark.parametrize("method", SAMPLED_METHODS, ids=lambda method: method.value)
def test_tokens_do_not_depend_on_the_rest_of_the_batch(method: Method):
    batch = mixed_round(method)
    together = batch.verify(verification_of(method))
    assert not together.invalid.any()
    assert len(together.num_accepted.unique()) > 2
    for request in range(len(batch.lengths)):
        alone = batch.verify(verification_of(method), torch.tensor([request]))
        assert torch.equal(alone.token_ids[0], together.token_ids[request])
        assert torch.equal(alone.num_accepted[0], together.num_accepted[request])


@pytest.mark.parametrize("method", SAMPLED_METHODS, ids=lambda method: method.value)
def test_verdict_holds_accepted_drafts_then_one_token_then_padding(method: Method):
    batch = mixed_round(method)
    verdict = batch.verify(verification_of(method))
    assert bool((verdict.num_accepted <= batch.lengths).all())
    for row, accepted in enumerate(verdict.num_accepted.tolist()):
        tokens = verdict.token_ids[row].tolist()
        assert tokens[:accepted] == batch.token_ids[row, :accepted].tolist()
        assert 0 <= tokens[accepted] < 1003
        assert tokens[accepted + 1 :] == [-1] * (3 - accepted)


@pytest.mark.parametrize("method", SAMPLED_METHODS, ids=lambda method: method.value)
def test_order_of_requests_and_of_cache_rows_does_not_matter(method: Method):
    batch = mixed_round(method)
    expected = batch.verify(verification_of(method))
    num_requests = len(batch.lengths)
    generator = torch.Generator().manual_seed(3)
    order = torch.randperm(num_requests, generator=generator)
    slots = torch.randperm(num_requests + 5, generator=generator)[:num_requests]
    cache = torch.full((num_requests + 5, 4, 1003), torch.nan)
    cache[slots, :3] = batch.cache
    draft = Draft(batch.token_ids[order], batch.lengths[order], cache, slots[order])
    streams = Streams(*(getattr(batch.streams, name)[order] for name in ("seeds", "positions", "rounds")))
    verdict = verify(batch.rows(order), draft, sampling_rows(batch.sampling, order), verification_of(method), streams)
    assert torch.equal(verdict.token_ids, expected.token_ids[order])
    assert torch.equal(verdict.num_accepted, expected.num_accepted[order])


@pytest.mark.parametrize("method", SAMPLED_METHODS, ids=lambda method: method.value)
def test_entries_beyond_the_draft_are_ignored(method: Method):
    batch = mixed_round(method)
    expected = batch.verify(verification_of(method))
    beyond = torch.arange(3) >= batch.lengths[:, None]
    batch.token_ids[beyond] = -7
    batch.cache[beyond] = torch.nan
    verdict = batch.verify(verification_of(method))
    assert torch.equal(verdict.token_ids, expected.token_ids)
    assert torch.equal(verdict.invalid, expected.invalid)


@pytest.mark.parametrize(
    ("method", "num_sampled"),
    [(method, 0) for method in Method if method is not Method.synthetic]
    + [(method, 1) for method in SAMPLED_METHODS if method is not Method.synthetic]
    + [(method, num_sampled) for method in (LOSSY, LOSSY_TO_LAST_SUCCESS) for num_sampled in (0, 1)],
)
def test_temperature_zero_accepts_the_argmax_under_every_method(method: Method | OwnMethod, num_sampled: int):
    """In a batch of its own, and beside a sampled request."""
    batch = Round([GREEDY] * 6 + [PLAIN] * num_sampled, [3] * (6 + num_sampled), vocab_size=11)
    best = batch.target.argmax(dim=2)
    batch.token_ids[:6] = best[:6, :3]
    for request in range(3):
        batch.token_ids[request, request] = (best[request, request] + 1) % 11
    given = {"epsilon": 1.0, "delta": 100.0} if method is Method.typical else {}
    verdict = batch.verify(Verification(method, **given))
    assert verdict.num_accepted[:6].tolist() == [0, 1, 2, 3, 3, 3]
    for request, accepted in enumerate([0, 1, 2, 3, 3, 3]):
        assert verdict.token_ids[request, : accepted + 1].tolist() == best[request, : accepted + 1].tolist()


def test_temperature_zero_takes_the_lowest_id_on_ties():
    target = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0], [0.0, 0.0, 1.0], [0.0, 5.0, 5.0]])
    draft = Draft(torch.tensor([[1], [1]]), torch.tensor([1, 1]))
    streams = Streams(*[torch.zeros(2, dtype=torch.long)] * 3)
    for method in (Method.greedy, Method.block):
        verdict = verify(target, draft, sampling_of(GREEDY, GREEDY), Verification(method), streams)
        assert verdict.token_ids.tolist() == [[1, 0], [2, -1]]


@pytest.mark.parametrize("method", SAMPLED_METHODS, ids=lambda method: method.value)
@pytest.mark.parametrize("setting", [PLAIN, GREEDY], ids=["sampled", "greedy"])
def test_round_without_drafts_draws_the_bonus(method: Method, setting: Setting):
    num_rows, logits = 20_000, torch.tensor([0.5, 0.0, 1.0])
    streams = Streams(torch.arange(num_rows), torch.full((num_rows,), 3), torch.zeros(num_rows, dtype=torch.long))
    draft = Draft(torch.zeros(num_rows, 0, dtype=torch.long), torch.zeros(num_rows, dtype=torch.long))
    verdict = verify(
        logits.expand(num_rows, 3), draft, sampling_of(*[setting] * num_rows), Verification(method), streams
    )
    assert verdict.token_ids.shape == (num_rows, 1)
    counts = torch.bincount(verdict.token_ids[:, 0], minlength=3)
    if setting == GREEDY:
        assert counts.tolist() == [0, 0, num_rows]
    else:
        assert stats.chisquare(counts, logits.double().softmax(dim=0) * num_rows).pvalue > FALSE_ALARM


def test_empty_batch():
    none = torch.zeros(0, dtype=torch.long)
    draft = Draft(none.view(0, 2), none)
    verdict = verify(
        torch.zeros(0, 5),
        draft,
        Sampling(torch.zeros(0), none, torch.zeros(0), torch.zeros(0)),
        Verification(Method.block),
        Streams(none, none, none),
    )
    assert verdict.token_ids.shape == (0, 3)


def test_strict_on_cached_drafts_is_probabilistic_on_one_hot_drafts():
    batch = Round([PLAIN, (0.7, 20, 1.0, 0.0)] * 20, [3] * 40)
    expected = batch.verify(Verification(Method.strict))
    one_hot = Draft(batch.token_ids, batch.lengths)
    verdict = verify(
        batch.rows(torch.arange(40)), one_hot, batch.sampling, Verification(Method.probabilistic), batch.streams
    )
    assert torch.equal(verdict.token_ids, expected.token_ids)


def test_block_with_one_draft_token_is_probabilistic():
    batch = Round([PLAIN] * 60, [1] * 60, vocab_size=30)
    block, probabilistic = (batch.verify(Verification(method)) for method in (Method.block, Method.probabilistic))
    assert torch.equal(block.token_ids, probabilistic.token_ids)


def test_leniency_one_is_probabilistic():
    batch = Round([PLAIN] * 60, [3] * 60, vocab_size=30)
    lenient, probabilistic = (batch.verify(Verification(method)) for method in (Method.lenient, Method.probabilistic))
    assert torch.equal(lenient.token_ids, probabilistic.token_ids)


@pytest.mark.parametrize("method", [Method.probabilistic, Method.block], ids=lambda method: method.value)
def test_smaller_draft_vocabulary_equals_a_full_one_with_the_rest_cut(method: Method):
    batch = Round([PLAIN, (0.8, 12, 0.9, 0.0), GREEDY] * 10, [3] * 30, vocab_size=60)
    draft_to_target = torch.randperm(60, generator=torch.Generator().manual_seed(1))[:25]
    small = batch.cache[:, :, draft_to_target]
    columns = []
    for index in range(3):
        here = Streams(batch.streams.seeds, batch.streams.positions + index, batch.streams.rounds)
        columns.append(draw(small[:, index], batch.sampling, here, Purpose.draft, draft_to_target).token_ids)
    token_ids = torch.stack(columns, dim=1)
    full = torch.full_like(batch.cache, -torch.inf)
    full[:, :, draft_to_target] = small
    verdicts = [
        verify(batch.rows(torch.arange(30)), draft, batch.sampling, Verification(method), batch.streams)
        for draft in (
            Draft(token_ids, batch.lengths, small, None, draft_to_target),
            Draft(token_ids, batch.lengths, full),
        )
    ]
    assert torch.equal(verdicts[0].token_ids, verdicts[1].token_ids)
    assert not verdicts[0].invalid.any()
    assert len(verdicts[0].num_accepted.unique()) > 1


def own_round(method: OwnMethod, mask: TokenMask | None = None) -> VerificationResult:
    """One request at temperature 1 whose draft is token 2, then 1, of four that are equally probable."""
    streams = Streams(*[torch.zeros(1, dtype=torch.long)] * 3)
    draft = Draft(torch.tensor([[2, 1]]), torch.tensor([2]))
    return verify(torch.zeros(3, 4), draft, sampling_of(PLAIN), Verification(method), streams, mask)


def always(proposal: Proposal) -> Odds:
    return Odds(torch.full_like(proposal.target_logprobs, 2.0), torch.ones_like(proposal.target_logprobs))


def own(odds: Callable, traits: MethodTraits, emission: Callable | None = None, value: str = "own") -> OwnMethod:
    """A method whose rule returns what the functions do."""
    functions = {"traits": traits, "odds": lambda _, proposal: odds(proposal)}
    if emission is not None:
        functions["emission"] = lambda _, *given: emission(*given)
    return OwnMethod(type("Own", (Rule,), functions)(), value)


@pytest.mark.parametrize("stops", [True, False])
def test_a_method_of_ones_own_cannot_pass_a_forbidden_token(stops: bool):
    """Neither accept it, nor what was drafted after it, nor emit it."""
    traits = MethodTraits(Guarantee.lossy, stops_at_first_failure=stops)
    only_3 = TokenMask(torch.tensor([[0b1000]]).int(), torch.tensor([0, -1, -1]))
    for emission in (None, lambda proposal, num_accepted: torch.ones(1, 4, dtype=torch.float64)):
        method = own(always, traits, emission)
        assert own_round(method).num_accepted.tolist() == [2]
        verdict = own_round(method, only_3)
        assert verdict.num_accepted.tolist() == [0] and verdict.token_ids.tolist() == [[3, -1, -1]]


@pytest.mark.parametrize(
    ("odds", "found"),
    [
        (torch.ones(1, 2), "tensor"),
        (Odds(torch.ones(2), torch.ones(1, 2)), r"\[2\]"),
        (Odds(torch.ones(1, 2), 1.0), "found 1.0"),
        (Odds(torch.tensor([[1.0, torch.nan]]), torch.ones(1, 2)), "nan / 1.0 for draft token 2"),
        (Odds(torch.tensor([[-1.0, 1.0]]), torch.ones(1, 2)), "-1.0 / 1.0"),
        (Odds(torch.ones(1, 2), torch.zeros(1, 2)), "1.0 / 0.0"),
    ],
)
def test_odds_that_are_none_name_the_method(odds: object, found: str):
    with pytest.raises(ValueError, match=f"rules:mine: expected .*{found}"):
        own_round(own(lambda proposal: odds, MethodTraits(Guarantee.lossy), value="rules:mine"))


@pytest.mark.parametrize("row", [[0.0] * 4, [1, 1, torch.nan, 1], [1, 1, torch.inf, 1], [-1.0, 1, 1, 1], [1.0] * 3])
def test_weights_that_are_none_name_the_method(row: list[float]):
    """Would catch a token outside the vocabulary, which a sum of 0 or NaN would draw."""
    method = own(always, MethodTraits(Guarantee.lossy), lambda *_: torch.tensor([row]), "rules:mine")
    with pytest.raises(ValueError, match="rules:mine: expected `emission`"):
        own_round(method)
