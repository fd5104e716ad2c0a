"""The log-probability kernel against the reference."""

from dataclasses import replace

import pytest
import torch

from kernels.contract import Sampling
from kernels.reference.logprobs import TopLogprobs
from kernels.reference.logprobs import logprobs as reference_logprobs
from tests.support.kernel_rounds import DEVICE, LOGPROB_ATOL, LOGPROB_RTOL, MIXED, moved, poisoned_allocations, spaced
from tests.support.random_round import sampling_of


def check(logits: torch.Tensor, token_ids: torch.Tensor, num_top: int, sampling: Sampling | None = None) -> TopLogprobs:
    from kernels.logprobs import logprobs

    with poisoned_allocations():
        found = logprobs(logits, token_ids, num_top, sampling)
    expected = reference_logprobs(logits, token_ids, num_top, sampling)
    within = {"atol": LOGPROB_ATOL, "rtol": LOGPROB_RTOL, "equal_nan": True}
    torch.testing.assert_close(found.token_logprob, expected.token_logprob, **within)
    torch.testing.assert_close(found.top_logprobs, expected.top_logprobs, **within)
    survives = expected.top_logprobs > -torch.inf
    assert torch.equal(found.top_token_ids[survives], expected.top_token_ids[survives])
    assert found.rank.tolist() == expected.rank.tolist()
    return found


def rows_of(vocab_size: int, dtype: torch.dtype, ties: bool = False) -> torch.Tensor:
    rows = 3 * torch.randn(len(MIXED), vocab_size, generator=torch.Generator().manual_seed(1))
    return (rows.round() if ties else rows).to(dtype).to(DEVICE)


def tokens_of(vocab_size: int) -> torch.Tensor:
    return torch.randint(0, vocab_size, (len(MIXED),), generator=torch.Generator().manual_seed(2)).to(DEVICE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", ["raw", "processed", "mixed"])
def test_token_and_alternatives(kind: str, dtype: torch.dtype):
    sampling = replace(moved(sampling_of(*MIXED), DEVICE), is_mixed=kind == "mixed")
    check(rows_of(300, dtype), tokens_of(300), 5, None if kind == "raw" else sampling)


@pytest.mark.parametrize("num_top", [0, 1, 20])
def test_number_of_alternatives_and_rows_of_several_chunks(num_top: int):
    assert check(rows_of(2100, torch.float32), tokens_of(2100), num_top).top_token_ids.shape == (len(MIXED), num_top)


def test_ties_go_to_the_lowest_id():
    check(rows_of(300, torch.float32, ties=True), tokens_of(300), 10)


def test_more_alternatives_than_tokens():
    check(rows_of(3, torch.float32), tokens_of(3), 8)


def test_rows_further_apart_than_their_length():
    check(spaced(rows_of(63, torch.bfloat16), 5), tokens_of(63), 3)


def test_rows_without_a_distribution():
    logits = rows_of(63, torch.float32)
    logits[0], logits[1, 3], logits[2, 0] = -torch.inf, torch.nan, torch.inf
    found = check(logits[3:], tokens_of(63)[3:], 3)
    assert bool(found.token_logprob.isfinite().all())
    from kernels.logprobs import logprobs

    assert bool(logprobs(logits, tokens_of(63), 3).token_logprob[:3].isnan().all())
