"""Sampling parameters that are the same for every row: their types, and the promise that nothing is cut."""

import pytest
import torch

from kernels.checks import checked_requests
from kernels.contract import Sampling, Streams


def test_every_row_has_the_parameters_in_the_types_that_kernels_take():
    sampling = Sampling.same_for_all(3, 0.7, 20, 0.9, 0.05)
    zeros = torch.zeros(3, dtype=torch.int64)
    checked, _ = checked_requests(3, sampling, Streams(zeros, zeros, zeros))
    assert checked.top_k.tolist() == [20] * 3
    for field, value in ((checked.temperature, 0.7), (checked.top_p, 0.9), (checked.min_p, 0.05)):
        assert torch.equal(field, torch.tensor([value] * 3))


@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p", "truncates"),
    [(0, 1.0, 0.0, False), (5, 1.0, 0.0, True), (0, 0.9, 0.0, True), (0, 1.0, 0.1, True)],
    ids=["plain", "top-k", "top-p", "min-p"],
)
def test_what_cuts_nothing_promises_it(top_k: int, top_p: float, min_p: float, truncates: bool):
    assert Sampling.same_for_all(2, 0.0, top_k, top_p, min_p).truncates is truncates
