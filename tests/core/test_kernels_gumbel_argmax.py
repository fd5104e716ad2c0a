"""Coupled draws: the bounds that spare most tokens their exact noise must be bounds, up to the last bits."""

import pytest
import torch
import triton
import triton.language as tl

from kernels.contract import Sampling, Streams
from kernels.core import reference_core, triton_core
from kernels.random.streams import gumbel, to_unit
from kernels.rows.gumbel_argmax import highest_noise
from tests.support.kernel_rounds import DEVICE, assert_same_drawn, moved

HIGHEST = 2**32 - 1
NEAR_ONE = [HIGHEST - rest for rest in (0, 1, 31, 32, 33, 63, 64, 95, 1000, 3038, 2**16, 2**27)]
ELSEWHERE = [0, 1, 31, 32, 33, 12345, 2**31 - 1, 2**31, 15 * 2**28 - 1, 15 * 2**28, 15 * 2**28 + 32]


@triton.jit
def _bounds_kernel(words, bounds, COUNT: tl.constexpr):
    places = tl.arange(0, COUNT)
    high = tl.load(words + places).to(tl.uint32)
    tl.store(bounds + places, highest_noise(high))


@pytest.mark.parametrize("highs", [NEAR_ONE, ELSEWHERE], ids=["near one", "elsewhere"])
def test_no_noise_with_an_upper_word_lies_above_its_bound(highs):
    """Would catch a bound from all 32 bits of the word, of which the uniform number only has 27."""
    count = triton.next_power_of_2(len(highs))
    words = torch.tensor(highs + [0] * (count - len(highs)), dtype=torch.int64, device=DEVICE)
    bounds = torch.empty(count, device=DEVICE)
    _bounds_kernel[(1,)](words, bounds, COUNT=count)
    largest = -torch.log(-torch.log(to_unit(words, torch.full_like(words, HIGHEST))))
    assert (bounds.double() >= largest - 1e-4).all()  # kernels.rows.gumbel_argmax adds 1e-3 for float32


def test_the_winner_among_close_scores_is_the_exact_one():
    """Two tokens whose scores lie 0.004 apart, the better one with noise from the last bits of its upper word.

    Would catch the bound above: the draw then takes the other token.
    """
    seed, position, size = 69, 5, 112192
    noise = gumbel(torch.tensor([seed]), torch.tensor([position]), size)[0]
    logits = torch.full((1, size), -torch.inf)
    logits[0, 112191] = -3.53975
    logits[0, 78597] = 10.125
    scores = logits[0].double() + noise
    assert 0.003 < scores[112191] - scores[78597] < 0.005
    streams = Streams(*(torch.tensor([value], device=DEVICE) for value in (seed, position, 0)))
    sampling = Sampling.same_for_all(1, 1.0, 0, 1.0, 0.0, torch.device(DEVICE))
    assert triton_core().coupled_draw(logits.to(DEVICE), sampling, streams, size).token_ids.item() == 112191


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_a_row_of_the_smallest_logits_draws_one_of_them(temperature):
    """Would catch a logit that overflows when it is divided by its temperature, and then can never win."""
    logits = torch.full((3, 64), torch.finfo(torch.float32).min, device=DEVICE)
    streams = Streams(*(torch.arange(3, device=DEVICE) for _ in range(3)))
    sampling = Sampling.same_for_all(3, temperature, 0, 1.0, 0.0, torch.device(DEVICE))
    drawn = triton_core().coupled_draw(logits, sampling, streams, 64)
    assert ((drawn.token_ids >= 0) & (drawn.token_ids < 64)).all() and not drawn.invalid.any()


EXTREMES = {
    "equal logits": (torch.full((2, 24), 1e17), 1.0),
    "the largest logits": (torch.full((2, 24), torch.finfo(torch.float32).max), 0.7),
    "a temperature near 0": (torch.arange(24).remainder(7).expand(2, 24).float(), 1e-20),
    "in two chunks": (torch.full((2, 2100), -1e18).index_fill(1, torch.tensor([7, 2099]), 1e18), 1.0),
}


@pytest.mark.parametrize(("logits", "temperature"), EXTREMES.values(), ids=EXTREMES)
@pytest.mark.parametrize("top_p", [1.0, 0.9], ids=["uncut", "cutting"])
def test_noise_decides_among_extreme_logits(logits: torch.Tensor, temperature: float, top_p: float):
    """Would catch noise that is added to a number so large that it is rounded away: the lowest id then always wins."""
    streams = Streams(*(torch.arange(1, 3) for _ in range(3)))
    sampling = Sampling.same_for_all(2, temperature, 0, top_p, 0.0)
    expected = reference_core().coupled_draw(logits, sampling, streams, logits.shape[1])
    found = triton_core().coupled_draw(
        logits.to(DEVICE), moved(sampling, DEVICE), moved(streams, DEVICE), logits.shape[1]
    )
    assert_same_drawn(moved(found, torch.device("cpu")), expected)
