"""Drafters that need no network, and the pairs a chain drafter feeds its head."""

import pytest
import torch

from harness.drafters.ngram import lookup
from harness.drafters.none import NoDrafter
from harness.drafters.protocol import ProposalRequest
from kernels.contract import Sampling


@pytest.mark.parametrize(
    ("sequence", "longest", "shortest", "num_tokens", "expected"),
    [
        pytest.param([1, 2, 3, 9, 1, 2], 4, 2, 3, [3, 9, 1], id="tokens after the earlier occurrence"),
        pytest.param([1, 2, 3, 4, 1, 2, 5, 6, 1, 2], 4, 2, 2, [5, 6], id="the most recent occurrence wins"),
        pytest.param([7, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2], 3, 2, 1, [3], id="a longer suffix beats a more recent one"),
        pytest.param([1, 2, 3, 4], 4, 2, 3, [], id="no occurrence, no draft"),
        pytest.param([1, 2, 1], 4, 2, 3, [], id="a suffix shorter than the shortest is not looked up"),
        pytest.param([5, 5, 5], 4, 1, 4, [5], id="overlapping occurrence gives only tokens that exist"),
        pytest.param([], 4, 1, 4, [], id="a row without a request"),
    ],
)
def test_lookup(sequence, longest, shortest, num_tokens, expected):
    assert lookup(sequence, longest, shortest, num_tokens) == expected


def test_baseline_proposes_nothing():
    rows = torch.zeros(3)
    request = ProposalRequest(
        num_rows=3,
        num_speculative_tokens=4,
        sequences=[[1], [2], []],
        sampling=Sampling(rows, rows, rows, rows),
        seeds=rows.long(),
        positions=rows.long(),
        rounds=rows.long(),
        length=1,
    )
    draft = NoDrafter().propose(request)
    assert draft.token_ids.shape == (3, 0) and draft.num_draft_tokens.tolist() == [0, 0, 0]
