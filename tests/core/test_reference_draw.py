"""Drawing one token per row: inversion, the draft draw, and its law."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from kernels.contract import Sampling, Streams
from kernels.random.streams import Purpose
from kernels.reference.choose import choose
from kernels.reference.coupled import coupled_draw
from kernels.reference.draw import draw
from kernels.reference.truncation import process

pytestmark = pytest.mark.fast

FALSE_ALARM = 1e-4
LARGEST = 1 - 2.0**-53


def sampling_of(num_rows: int, temperature: float = 1.0, top_k: int = 0) -> Sampling:
    return Sampling(
        torch.full((num_rows,), temperature),
        torch.full((num_rows,), top_k),
        torch.ones(num_rows),
        torch.zeros(num_rows),
    )


def streams_of(num_rows: int, position: int = 5, round_index: int = 1) -> Streams:
    return Streams(torch.arange(num_rows), torch.full((num_rows,), position), torch.full((num_rows,), round_index))


def test_choose_inverts_the_cumulative_sum():
    weights = torch.tensor([[1.0, 0.0, 3.0]], dtype=torch.float64).expand(5, 3)
    uniforms = torch.tensor([2.0**-54, 0.2499, 0.25, 0.9, LARGEST], dtype=torch.float64)
    assert choose(weights, uniforms).tolist() == [0, 0, 2, 2, 2]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.one_of(st.just(0.0), st.floats(1e-300, 1e3)), min_size=1, max_size=12).filter(any),
    st.sampled_from([2.0**-54, 0.3, 0.999999, LARGEST]),
)
def test_choose_never_takes_a_token_without_weight(weights: list[float], uniform: float):
    row = torch.tensor([weights], dtype=torch.float64)
    token = int(choose(row, torch.tensor([uniform], dtype=torch.float64)))
    assert 0 <= token < len(weights)
    assert weights[token] > 0


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_law_of_the_draw(temperature: float):
    num_rows, logits = 50_000, torch.tensor([0.3, -0.5, 1.1, 0.2, -2.0, 0.0])
    sampling = sampling_of(num_rows, temperature, top_k=4)
    rows = logits.expand(num_rows, -1)
    law = process(logits[None], sampling_of(1, temperature, top_k=4)).exp()[0]
    for drawn in (
        draw(rows, sampling, streams_of(num_rows), Purpose.draft),
        coupled_draw(rows, sampling, streams_of(num_rows), 6),
    ):
        counts = torch.bincount(drawn.token_ids, minlength=6)
        assert counts[law == 0].tolist() == [0, 0]
        assert stats.chisquare(counts[law > 0], law[law > 0] * num_rows).pvalue > FALSE_ALARM


def test_logprob_is_that_of_the_processed_distribution():
    logits = torch.randn(20, 40, generator=torch.Generator().manual_seed(1))
    sampling = sampling_of(20, 0.7, top_k=10)
    for drawn in (
        draw(logits, sampling, streams_of(20), Purpose.draft),
        coupled_draw(logits, sampling, streams_of(20), 40),
    ):
        expected = process(logits, sampling).gather(1, drawn.token_ids[:, None])[:, 0]
        assert drawn.logprobs.dtype == torch.float32
        torch.testing.assert_close(drawn.logprobs, expected.float())
        assert bool((expected > -torch.inf).all())


def test_temperature_zero_takes_the_lowest_argmax():
    logits = torch.tensor([[0.0, 7.0, 7.0], [1.0, 0.0, -1.0]])
    for drawn in (
        draw(logits, sampling_of(2, 0.0), streams_of(2), Purpose.draft),
        coupled_draw(logits, sampling_of(2, 0.0), streams_of(2), 3),
    ):
        assert drawn.token_ids.tolist() == [1, 0]
        assert drawn.logprobs.tolist() == [0.0, 0.0]


def test_ids_are_those_of_the_target():
    draft_to_target = torch.tensor([11, 4, 8])
    logits = torch.tensor([[0.0, 30.0, 0.0], [0.0, 0.0, 30.0]])
    drawn = draw(logits, sampling_of(2), streams_of(2), Purpose.draft, draft_to_target)
    assert drawn.token_ids.tolist() == [4, 8]
    drawn = coupled_draw(logits, sampling_of(2), streams_of(2), 12, draft_to_target)
    assert drawn.token_ids.tolist() == [4, 8]


def test_purposes_rounds_and_positions_are_drawn_apart():
    logits, sampling = torch.zeros(30, 1000), sampling_of(30)
    draws = [
        draw(logits, sampling, streams_of(30, position, round_index), purpose).token_ids
        for position, round_index, purpose in [
            (5, 1, Purpose.draft),
            (6, 1, Purpose.draft),
            (5, 2, Purpose.draft),
            (5, 1, Purpose.bonus),
        ]
    ]
    for index, one in enumerate(draws):
        for other in draws[index + 1 :]:
            assert int((one == other).sum()) <= 2


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_row_without_a_distribution_is_flagged(temperature: float):
    logits = torch.tensor([[0.0, torch.nan, 0.0], [-torch.inf] * 3, [0.0, 1.0, 0.0]])
    for drawn in (
        draw(logits, sampling_of(3, temperature), streams_of(3), Purpose.draft),
        coupled_draw(logits, sampling_of(3, temperature), streams_of(3), 3),
    ):
        assert drawn.invalid.tolist() == [True, True, False]
        assert drawn.token_ids[:2].tolist() == [0, 0]
        assert drawn.logprobs.isnan().tolist() == [True, True, False]
