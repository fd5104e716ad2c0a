"""Temperature, top-k, top-p and min-p against a plain one-token-at-a-time implementation."""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kernels.contract import Draft, RowStats, Streams, Verification, VerificationMethod
from kernels.reference import thresholds as thresholds_module
from kernels.reference.truncation import keep_row_stats, process, processed
from kernels.reference.verify import verify
from tests.support.random_round import Setting, sampling_of

pytestmark = pytest.mark.fast

BOUNDARY = 1e-9
"""How near a cumulative mass may come to top_p before rounding decides; such examples are not compared."""


def process_one(logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float) -> list[float] | None:
    """Probabilities of one row; None where rounding alone decides what top-p keeps."""
    if temperature == 0:
        return [float(index == logits.index(max(logits))) for index in range(len(logits))]
    scaled = [value / temperature for value in logits]
    largest = max(scaled)
    weights = [math.exp(value - largest) for value in scaled]
    kept = set(range(len(scaled)))
    if 0 < top_k < len(scaled):
        kth = sorted(scaled, reverse=True)[top_k - 1]
        kept = {index for index in kept if scaled[index] >= kth}
    if top_p < 1:
        total = sum(weights[index] for index in kept)
        mass, last = 0.0, largest
        for index in sorted(kept, key=lambda index: -scaled[index]):
            if abs(mass - top_p) < BOUNDARY:
                return None
            if mass < top_p:
                last = scaled[index]
            mass += weights[index] / total
        kept = {index for index in kept if scaled[index] >= last}
    kept = {index for index in kept if weights[index] >= min_p}
    total = sum(weights[index] for index in kept)
    return [weights[index] / total if index in kept else 0.0 for index in range(len(scaled))]


def as_float32(value: float) -> float:
    return float(torch.tensor(value))


ROWS = st.lists(st.integers(-6, 6), min_size=2, max_size=9).map(lambda row: [value / 2 for value in row])
TEMPERATURES = st.sampled_from([0.0, 0.3, 0.7, 1.0, 1.5])
TOP_KS = st.integers(0, 10)
TOP_PS = st.sampled_from([1.0, 0.95, 0.83, 0.61, 0.37, 0.01]).map(as_float32)
MIN_PS = st.sampled_from([0.0, 0.011, 0.093, 0.52]).map(as_float32)


@settings(max_examples=250, deadline=None)
@given(ROWS, TEMPERATURES, TOP_KS, TOP_PS, MIN_PS, st.sampled_from([1, 1024]))
def test_any_combination_of_settings(logits, temperature, top_k, top_p, min_p, num_bins):
    """Half-integer logits tie often; `num_bins` below the vocabulary takes the binned search for top-p."""
    temperature = as_float32(temperature)
    expected = process_one(logits, temperature, top_k, top_p, min_p)
    assume(expected is not None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thresholds_module, "NUM_BINS", num_bins)
        probs = process(torch.tensor([logits]), sampling_of((temperature, top_k, top_p, min_p))).exp()[0]
    torch.testing.assert_close(probs, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("top_k", [0, 40])
@pytest.mark.parametrize("spread", [0.3, 2.0, 20.0])
def test_large_vocabulary(top_p: float, top_k: int, spread: float):
    generator = torch.Generator().manual_seed(int(spread * 10))
    logits = spread * torch.randn(3, 2500, generator=generator)
    probs = process(logits, sampling_of(*[(0.9, top_k, top_p, 0.0)] * 3)).exp()
    for row in range(3):
        expected = process_one(logits[row].double().tolist(), as_float32(0.9), top_k, as_float32(top_p), 0.0)
        torch.testing.assert_close(probs[row], torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-14)


def test_rows_with_different_settings_do_not_touch_each_other():
    generator = torch.Generator().manual_seed(0)
    settings_of_rows = [
        (1.0, 0, 1.0, 0.0),
        (0.0, 3, 0.5, 0.1),
        (0.7, 5, 1.0, 0.0),
        (1.3, 0, 0.8, 0.0),
        (1.0, 0, 1.0, 0.2),
        (0.9, 7, 0.6, 0.05),
    ]
    logits = torch.randn(len(settings_of_rows), 1003, generator=generator) * 3
    together = process(logits, sampling_of(*settings_of_rows))
    for row, setting in enumerate(settings_of_rows):
        assert torch.equal(process(logits[row : row + 1], sampling_of(setting))[0], together[row])


def test_ties_at_the_threshold_survive():
    logits = torch.tensor([[3.0, 1.0, 2.0, 2.0, 2.0, 0.0]])
    for setting in [(1.0, 2, 1.0, 0.0), (1.0, 0, 0.6, 0.0)]:
        kept = process(logits, sampling_of(setting))[0] > -torch.inf
        assert kept.tolist() == [True, False, True, True, True, False]


def test_what_survives_does_not_depend_on_the_order_of_the_vocabulary():
    generator = torch.Generator().manual_seed(1)
    logits = (2 * torch.randn(1, 300, generator=generator)).round()
    order = torch.randperm(300, generator=generator)
    sampling = sampling_of((1.0, 50, 0.7, 0.01))
    torch.testing.assert_close(process(logits[:, order], sampling), process(logits, sampling)[:, order])


def test_top_p_keeps_at_least_one_token():
    probs = process(torch.tensor([[0.0, 5.0, 1.0]]), sampling_of((1.0, 0, 1e-6, 0.0))).exp()
    assert probs.tolist() == [[0.0, 1.0, 0.0]]


def test_top_p_is_renormalised_after_top_k():
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    probs = process(logits, sampling_of((1.0, 2, 0.5, 0.0))).exp()
    torch.testing.assert_close(probs, torch.tensor([[1.0, 0, 0, 0]], dtype=torch.float64))


def test_min_p_is_relative_to_the_largest_after_temperature():
    logits = torch.tensor([[0.0, -1.0, -2.0]])
    for temperature, survivors in [(1.0, 2), (2.0, 3), (0.5, 1)]:
        kept = process(logits, sampling_of((temperature, 0, 1.0, 0.2))) > -torch.inf
        assert int(kept.sum()) == survivors


def test_temperature_zero_takes_the_lowest_id_among_equals():
    logits = torch.tensor([[1.0, 4.0, 4.0, 0.0], [2.0, 2.0, 2.0, 2.0]])
    probs = process(logits, sampling_of((0.0, 0, 1.0, 0.0), (0.0, 2, 0.3, 0.5))).exp()
    assert probs.argmax(dim=1).tolist() == [1, 0]
    assert probs.sum(dim=1).tolist() == [1.0, 1.0]
    assert probs.max(dim=1).values.tolist() == [1.0, 1.0]


def test_low_temperature_does_not_overflow():
    probs = process(torch.tensor([[80.0, 79.0, -80.0]]), sampling_of((1e-30, 0, 0.9, 0.1))).exp()
    assert probs.tolist() == [[1.0, 0.0, 0.0]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_logits_of_any_dtype_are_worked_on_in_float64(dtype: torch.dtype):
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(2)).to(dtype)
    setting = sampling_of(*[(0.8, 20, 0.9, 0.0)] * 4)
    assert torch.equal(process(logits, setting), process(logits.double(), setting))


@pytest.mark.parametrize("value", [torch.nan, torch.inf], ids=str)
@pytest.mark.parametrize("setting", [(1.0, 0, 1.0, 0.0), (0.7, 2, 0.9, 0.1), (0.0, 0, 1.0, 0.0)], ids=str)
def test_row_without_a_distribution_is_flagged(value: float, setting: Setting):
    logits = torch.tensor([[0.5, 1.0, 2.0, 0.1], [0.5, 1.0, value, 0.1], [-torch.inf] * 4, [-torch.inf, 1.0, 0.0, 0.0]])
    rows = processed(logits, sampling_of(*[setting] * 4))
    assert rows.invalid.tolist() == [False, True, True, False]
    assert rows.probs()[1:3].tolist() == [[1.0, 0.0, 0.0, 0.0]] * 2
    assert float(rows.probs()[3, 0]) == 0.0
    torch.testing.assert_close(rows.probs().sum(dim=1), torch.ones(4, dtype=torch.float64))


def test_single_values_are_those_of_the_whole_rows():
    logits = 2 * torch.randn(4, 30, generator=torch.Generator().manual_seed(6))
    rows = processed(
        logits, sampling_of((1.0, 0, 1.0, 0.0), (0.6, 5, 1.0, 0.0), (0.0, 0, 1.0, 0.0), (1.2, 0, 0.7, 0.0))
    )
    index, token_ids = torch.arange(4)[:, None], torch.arange(30)[None]
    assert torch.equal(rows.logprobs_at(index.expand(4, 30), token_ids.expand(4, 30)), rows.logprobs())
    picked = torch.tensor([2, 0])
    assert torch.equal(rows.logprobs(picked), rows.logprobs()[picked])


@pytest.mark.parametrize("setting", [(1.0, 0, 1.0, 0.0), (0.3, 0, 0.9, 0.0), (2.0, 5, 1.0, 0.1)], ids=str)
@pytest.mark.parametrize(
    "value", [torch.finfo(torch.float32).min, -1e20, 1e30, torch.finfo(torch.float32).max], ids=str
)
def test_equal_logits_of_any_size_are_a_uniform_distribution(setting, value: float):
    """Would catch a logarithm of 64 that is added to a number too large to notice."""
    logits = torch.full((1, 64), value)
    sampling = sampling_of(setting)
    rows = processed(logits, sampling)
    uniform = torch.full((1, 64), 1 / 64, dtype=torch.float64)
    torch.testing.assert_close(rows.probs(), uniform, rtol=1e-12, atol=0.0)
    torch.testing.assert_close(
        rows.logprobs_at(torch.tensor([0]), torch.tensor([17])).exp(), uniform[0, :1], rtol=1e-12, atol=0.0
    )
    stats = RowStats.empty(1)
    keep_row_stats(rows, sampling, stats)
    assert float(stats.normalizer) == pytest.approx(64.0, rel=1e-12)


def test_a_one_hot_draft_of_huge_equal_logits_is_accepted_as_often_as_it_is_probable():
    """Would catch a probability of 1 for every token: 200 of 200 were accepted."""
    target = torch.full((200 * 2, 64), torch.finfo(torch.float32).min)
    draft = Draft(torch.full((200, 1), 5), torch.ones(200, dtype=torch.long))
    streams = Streams(torch.arange(200), torch.full((200,), 3), torch.zeros(200, dtype=torch.long))
    sampling = sampling_of(*[(1.0, 0, 1.0, 0.0)] * 200)
    verdict = verify(target, draft, sampling, Verification(VerificationMethod.strict), streams)
    assert 0 < int(verdict.num_accepted.sum()) < 15
    assert not bool(verdict.invalid.any())
