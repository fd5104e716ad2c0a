"""The law of a draw: from outside by its boundaries, from inside by masses and prefix sums."""

from dataclasses import replace

import pytest
import torch

from harness.checks.agreement.draw_law import boundary_shift, total_variation
from harness.checks.agreement.kernel_law import kernel_law, law_of_chunks
from harness.checks.agreement.law_run import ROWS
from kernels.contract import Sampling
from kernels.core import reference_core
from kernels.reference.draw import draw
from kernels.reference.truncation import process
from tests.support.kernel_rounds import DEVICE, moved

CPU = torch.device("cpu")


def warmer_draw(logits, sampling, streams, purpose, draft_to_target=None, row_stats=None):
    """A draw at a temperature that is 1 % off."""
    return draw(logits, replace(sampling, temperature=sampling.temperature * 1.01), streams, purpose)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_the_reference_does_not_move_a_boundary(name: str, top_p: float):
    logits = ROWS[name](1000, torch.Generator().manual_seed(1))
    shift = boundary_shift(reference_core(), logits, Sampling.same_for_all(1, 0.7, 0, top_p, 0.0), 200, seed=5)
    assert shift == (200, 0, 0.0, 0)


def test_another_law_moves_a_boundary():
    """By no more than the laws differ, and by a good part of it."""
    logits, setting = ROWS["normal"](1000, torch.Generator().manual_seed(1)), Sampling.same_for_all(1, 1.0, 0, 1.0, 0.0)
    shift = boundary_shift(replace(reference_core(), draw=warmer_draw), logits, setting, 2000, seed=5)
    cooler, warmer = (
        process(logits[None], Sampling.same_for_all(1, each, 0, 1.0, 0.0)).exp()[0] for each in (1.0, 1.01)
    )
    largest = float((cooler.cumsum(dim=0) - warmer.cumsum(dim=0)).abs().max())
    assert shift.num_shifted > 0
    assert 0.3 * largest < shift.largest < 1.001 * largest


def test_a_cut_token_is_impossible():
    def forgets_top_k(logits, sampling: Sampling, streams, purpose, draft_to_target=None, row_stats=None):
        return draw(logits, replace(sampling, top_k=torch.zeros_like(sampling.top_k)), streams, purpose)

    logits, setting = torch.tensor([0.0, 1.0, 2.0]), Sampling.same_for_all(1, 1.0, 2, 1.0, 0.0)
    assert (
        boundary_shift(replace(reference_core(), draw=forgets_top_k), logits, setting, 100, seed=0).num_impossible > 0
    )


def test_law_of_chunks_gives_each_token_its_part_and_the_last_what_is_left():
    weights = torch.tensor([[1.0, 2.0, 0.0], [0.0, 4.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    masses = torch.tensor([2.5, 5.5, 0.0], dtype=torch.float64)
    law = law_of_chunks(weights, masses)
    assert (law * 8).tolist() == [[1.0, 1.5, 0.0], [0.0, 5.5, 0.0], [0.0, 0.0, 0.0]]


def test_total_variation():
    logits, setting = torch.tensor([0.5, 0.5]).log(), Sampling.same_for_all(1, 1.0, 0, 1.0, 0.0)
    assert total_variation(torch.tensor([0.7, 0.3], dtype=torch.float64), logits, setting) == pytest.approx(0.2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", ["nearly flat", "Zipf", "one token with .999"])
@pytest.mark.parametrize("top_p", [1.0, 0.9], ids=["whole", "top-p"])
def test_the_kernels_law_is_the_softmax(name: str, dtype: torch.dtype, top_p: float):
    logits = ROWS[name](5000, torch.Generator().manual_seed(2)).to(dtype).to(DEVICE)
    setting = moved(Sampling.same_for_all(1, 0.7, 0, top_p, 0.0), DEVICE)
    law = kernel_law(logits, setting)
    assert float(law.sum()) == pytest.approx(1.0, abs=1e-12)
    # each float32 weight is within 2^-22 of itself
    assert total_variation(law, logits, setting) < 2.0**-21
