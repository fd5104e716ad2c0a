"""Margins: nothing for what float64 finds itself, small for a small error, infinite for what cannot be."""

from dataclasses import replace

import pytest
import torch

from harness.checks.agreement.counts import ROUNDING
from harness.checks.agreement.margins import drawn_margins, verdict_margins
from harness.checks.agreement.round_inputs import DrawInputs, RoundInputs
from harness.checks.agreement.token_margin import interval_distance
from kernels.contract import Draft, Drawn, Streams, VerificationResult
from kernels.random.streams import Purpose
from kernels.reference.coupled import coupled_draw
from kernels.reference.draw import draw
from kernels.reference.verify import verify
from tests.support.random_round import (
    GREEDY,
    PLAIN,
    SAMPLED_METHODS,
    SHARES_NOISE,
    Method,
    Round,
    sampling_of,
    verification_of,
)

pytestmark = pytest.mark.fast

ALL_BUT_GREEDY = pytest.mark.parametrize("method", SAMPLED_METHODS, ids=lambda method: method.value)
SETTINGS = [PLAIN, (0.7, 0, 1.0, 0.0), (1.0, 20, 0.9, 0.0), (1.2, 0, 1.0, 0.05), GREEDY]
LENGTHS = [3, 3, 2, 3, 1]


def inputs_of(method: Method, num_times: int, settings=SETTINGS, vocab_size: int = 300) -> RoundInputs:
    lengths = (LENGTHS * len(settings))[: len(settings)] * num_times
    batch = Round(list(settings) * num_times, lengths, vocab_size, shared_noise=method in SHARES_NOISE)
    everything = torch.arange(len(lengths))
    return RoundInputs(batch.rows(everything), batch.draft(everything), batch.sampling, batch.streams)


def verdict_of(inputs: RoundInputs, method: Method) -> VerificationResult:
    arguments = (inputs.target_logits, inputs.draft, inputs.sampling, verification_of(method), inputs.streams)
    return verify(*arguments)


def differs(found: VerificationResult, expected: VerificationResult) -> torch.Tensor:
    return (found.token_ids != expected.token_ids).any(dim=1)


@ALL_BUT_GREEDY
def test_what_the_reference_finds_has_no_margin(method: Method):
    inputs = inputs_of(method, 8)
    margins = verdict_margins(inputs, verification_of(method), verdict_of(inputs, method))
    assert margins.tolist() == [0.0] * len(margins)


@ALL_BUT_GREEDY
def test_a_small_error_of_the_logits_gives_small_margins(method: Method):
    """Targets hotter by 1e-3: logarithms of probabilities are off by up to 1e-3 times some ten nats."""
    error = 1e-3
    inputs = inputs_of(method, 2000, [PLAIN, (0.7, 0, 1.0, 0.0)], vocab_size=40)
    found = verdict_of(replace(inputs, target_logits=inputs.target_logits.double() * (1 + error)), method)
    moved = differs(found, verdict_of(inputs, method)).nonzero()[:, 0]
    assert len(moved) > 0
    part = VerificationResult(found.token_ids[moved], found.num_accepted[moved], found.invalid[moved])
    margins = verdict_margins(inputs.take(moved), verification_of(method), part)
    assert bool((margins < 20 * error).all())
    assert bool((margins > 0).any())
    assert float(margins.max()) > ROUNDING


@ALL_BUT_GREEDY
def test_another_token_than_the_drawn_one_is_not_explained(method: Method):
    inputs = inputs_of(method, 8)
    verdict = verdict_of(inputs, method)
    last = verdict.num_accepted[:, None]
    wrong = (verdict.token_ids.gather(1, last) + 150) % 300
    found = VerificationResult(verdict.token_ids.scatter(1, last, wrong), verdict.num_accepted, verdict.invalid)
    margins = verdict_margins(inputs, verification_of(method), found)
    assert bool((margins > ROUNDING).all())


@ALL_BUT_GREEDY
def test_a_flipped_decision_is_not_explained(method: Method):
    """One draft token less than was accepted, or one more; the token behind them is what the rule would emit there."""
    inputs = inputs_of(method, 8)
    verdict = verdict_of(inputs, method)
    accepted = (verdict.num_accepted > 0).nonzero()[:, 0]
    assert len(accepted) > 0
    counts = verdict.num_accepted[accepted] - 1
    token_ids = verdict.token_ids[accepted].clone()
    token_ids[torch.arange(3 + 1) > counts[:, None]] = -1
    found = VerificationResult(token_ids, counts, verdict.invalid[accepted])
    assert bool((verdict_margins(inputs.take(accepted), verification_of(method), found) > ROUNDING).all())


@pytest.mark.parametrize("field", ["invalid", "padding", "accepted token", "outside", "too many"])
def test_a_verdict_that_contradicts_itself_is_never_explained(field: str):
    inputs = inputs_of(Method.probabilistic, 4)
    verdict = verdict_of(inputs, Method.probabilistic)
    token_ids, num_accepted, invalid = verdict.token_ids.clone(), verdict.num_accepted.clone(), verdict.invalid.clone()
    request = int((num_accepted == 1).nonzero()[0, 0])
    match field:
        case "invalid":
            invalid[request] = True
        case "padding":
            token_ids[request, 3] = 7
        case "accepted token":
            token_ids[request, 0] += 1
        case "outside":
            token_ids[request, 1] = 300
        case "too many":
            num_accepted[request] = 4
    margins = verdict_margins(
        inputs, verification_of(Method.probabilistic), VerificationResult(token_ids, num_accepted, invalid)
    )
    assert margins[request] == torch.inf
    assert int((margins > 0).sum()) == 1


def test_nothing_is_rounded_in_a_greedy_batch():
    inputs = inputs_of(Method.greedy, 4, [GREEDY])
    margins = verdict_margins(inputs, verification_of(Method.greedy), verdict_of(inputs, Method.greedy))
    assert bool((margins == torch.inf).all())


def test_interval_distance():
    weights = torch.tensor([[1.0, 2.0, 0.0, 1.0]], dtype=torch.float64).expand(4, 4)
    uniforms = torch.tensor([0.5, 0.5, 0.5, 0.125], dtype=torch.float64)
    found = interval_distance(weights, uniforms, torch.tensor([1, 0, 3, 0]))
    assert found.tolist() == [0.0, 1.0, 1.0, 0.0]


@pytest.mark.parametrize("purpose", [Purpose.draft, None], ids=["draw", "coupled draw"])
@pytest.mark.parametrize("mapped", [False, True], ids=["same vocabulary", "smaller vocabulary"])
def test_drawn_tokens(purpose: Purpose | None, mapped: bool):
    """None for the reference's own, something for another, infinity at temperature 0 and for what is cut."""
    logits = 2 * torch.randn(40, 30, generator=torch.Generator().manual_seed(1))
    ids = torch.randperm(50, generator=torch.Generator().manual_seed(2))[:30] if mapped else None
    sampling = sampling_of(*([PLAIN, (0.8, 5, 1.0, 0.0), GREEDY, (1.0, 0, 0.8, 0.0)] * 10))
    streams = Streams(torch.arange(40), torch.arange(40), torch.zeros(40, dtype=torch.long))
    if purpose is None:
        drawn = coupled_draw(logits, sampling, streams, 50, ids)
    else:
        drawn = draw(logits, sampling, streams, purpose, ids)

    def margins(found: Drawn) -> torch.Tensor:
        return drawn_margins(DrawInputs(logits, sampling, streams, purpose, 50, ids), found)

    assert margins(drawn).tolist() == [0.0] * 40
    worst = logits.argmin(dim=1) if ids is None else ids[logits.argmin(dim=1)]
    other = margins(replace(drawn, token_ids=worst))
    assert bool((other > ROUNDING).all())
    assert bool((other[1::2] == torch.inf).all()) and bool((other[2::4] == torch.inf).all())
    assert bool((margins(replace(drawn, token_ids=torch.full((40,), 50))) == torch.inf).all())
    assert bool((margins(replace(drawn, invalid=~drawn.invalid)) == torch.inf).all())


@pytest.mark.parametrize(
    ("setting", "wider", "explained"),
    [
        ((1.0, 0, 0.75 - 2e-6, 0.0), (1.0, 0, 0.75 + 1e-5, 0.0), True),
        ((1.0, 0, 0.74, 0.0), (1.0, 0, 0.75 + 1e-5, 0.0), False),
        ((1.0, 0, 1.0, 0.25 * (1 + 2e-6)), (1.0, 0, 1.0, 0.25 * (1 - 2e-6)), True),
        ((1.0, 0, 1.0, 0.26), (1.0, 0, 1.0, 0.25 * (1 - 2e-6)), False),
    ],
    ids=["top-p at a boundary", "top-p away from it", "min-p at a boundary", "min-p away from it"],
)
def test_a_token_that_truncation_keeps_or_cuts(setting, wider, explained: bool):
    """Probabilities 1/2, 1/4, 1/8, 1/8: the last two tie, and a wider setting keeps them."""
    logits = torch.tensor([0.5, 0.25, 0.125, 0.125]).log().expand(64, 4)
    streams = Streams(torch.arange(64), torch.zeros(64, dtype=torch.long), torch.zeros(64, dtype=torch.long))
    found = draw(logits, sampling_of(*[wider] * 64), streams, Purpose.draft)
    kept = found.token_ids >= 2
    assert bool(kept.any())
    margins = drawn_margins(DrawInputs(logits, sampling_of(*[setting] * 64), streams, Purpose.draft, 4), found)
    assert bool((margins[kept] <= ROUNDING).all()) == explained


def test_taking_requests_out_of_a_round_keeps_their_verdicts():
    inputs = inputs_of(Method.block, 4)
    requests = torch.tensor([13, 2, 7])
    assert torch.equal(
        verdict_of(inputs.take(requests), Method.block).token_ids, verdict_of(inputs, Method.block).token_ids[requests]
    )
    one_hot = replace(inputs, draft=Draft(inputs.draft.token_ids, inputs.draft.num_draft_tokens))
    assert torch.equal(
        verdict_of(one_hot.take(requests), Method.block).token_ids,
        verdict_of(one_hot, Method.block).token_ids[requests],
    )
