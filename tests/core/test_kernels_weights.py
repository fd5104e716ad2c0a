"""The arithmetic that the kernels share, one function at a time."""

import math

import pytest
import torch
import triton
import triton.language as tl

from kernels.rows.softmax_weights import inverse
from tests.support.kernel_rounds import DEVICE


@triton.jit
def inverting(temperatures, inverses):
    place = tl.program_id(0)
    tl.store(inverses + place, inverse(tl.load(temperatures + place)))


@pytest.mark.parametrize("temperature", [1e-30, 1e-4, 0.1, 0.3, 0.7, 1.0, 1.3, 3.0, 1000.0, 1e30])
def test_inverse_is_within_2_ulp(temperature: float):
    given = torch.tensor([temperature], device=DEVICE)
    found = torch.empty(1, dtype=torch.float64, device=DEVICE)
    inverting[(1,)](given, found)
    expected = 1.0 / float(given[0])
    assert abs(float(found[0]) - expected) <= 2 * math.ulp(expected)


@pytest.mark.parametrize(
    ("temperature", "expected"), [(0.0, 1.0), (1e-38, 1e30), (3e38, 1e-30), (math.inf, 1e-30)], ids=str
)
def test_inverse_of_a_temperature_out_of_range_is_finite(temperature: float, expected: float):
    given = torch.tensor([temperature], device=DEVICE)
    found = torch.empty(1, dtype=torch.float64, device=DEVICE)
    inverting[(1,)](given, found)
    assert float(found[0]) == pytest.approx(expected, rel=1e-7)
