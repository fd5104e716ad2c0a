"""Log-probabilities of output tokens: the reference by definition, and the kernel against it: equal integers,
log-probabilities within rounding."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.contract import Sampling
from kernels.logprobs import logprobs
from kernels.reference.logprobs import TopLogprobs
from kernels.reference.logprobs import logprobs as reference
from kernels.reference.truncation import process
from tests.support.kernel_rounds import DEVICE, LOGPROB_ATOL, LOGPROB_RTOL, moved, poisoned_allocations
from tests.support.random_round import GREEDY, PLAIN, sampling_of

CHUNK = 2048


def assert_same(found: TopLogprobs, expected: TopLogprobs) -> None:
    assert found.top_token_ids.tolist() == expected.top_token_ids.tolist()
    assert found.rank.tolist() == expected.rank.tolist()
    for one, other in ((found.token_logprob, expected.token_logprob), (found.top_logprobs, expected.top_logprobs)):
        assert one.dtype == torch.float32 and one.shape == other.shape
        torch.testing.assert_close(one.cpu(), other.cpu(), atol=LOGPROB_ATOL, rtol=LOGPROB_RTOL, equal_nan=True)


def compare(logits: Tensor, token_ids: Tensor, num_top: int, sampling: Sampling | None = None) -> TopLogprobs:
    """Both on the device of the kernels; returns what the kernel found."""
    logits, token_ids = logits.to(DEVICE), token_ids.to(DEVICE)
    sampling = None if sampling is None else moved(sampling, DEVICE)
    with poisoned_allocations():
        found = logprobs(logits, token_ids, num_top, sampling)
    assert_same(found, reference(logits, token_ids, num_top, sampling))
    return found


def random_rows(num_rows: int, vocab_size: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(vocab_size)
    logits = (4 * torch.randn(num_rows, vocab_size, generator=generator)).to(dtype)
    return logits, torch.randint(vocab_size, (num_rows,), generator=generator)


def untruncated(*temperatures: float) -> Sampling:
    return replace(sampling_of(*[(each, 0, 1.0, 0.0) for each in temperatures]), truncates=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("vocab_size", [1, 63, CHUNK, CHUNK + 1, 5 * CHUNK - 1])
def test_raw_rows(vocab_size: int, dtype: torch.dtype):
    """Sixteen-bit rows of this size are full of equal logits."""
    compare(*random_rows(4, vocab_size, dtype), num_top=6)


@pytest.mark.parametrize("vocab_size", [63, 4 * CHUNK + 3])
def test_temperatures_greedy_among_them(vocab_size: int):
    logits, token_ids = random_rows(5, vocab_size, torch.bfloat16)
    token_ids[1] = logits[1].argmax()
    token_ids[3] = logits[3].argmax()
    compare(logits, token_ids, 4, untruncated(0.7, 0.0, 0.0, 1.0, 1.6))


def test_equal_logits_come_by_id_across_chunks():
    logits = torch.zeros(1, 3 * CHUNK)
    logits[0, [5, 7, CHUNK + 1, 2 * CHUNK]] = 2.0
    found = compare(logits, torch.tensor([CHUNK + 1]), 6)
    assert found.top_token_ids.tolist() == [[5, 7, CHUNK + 1, 2 * CHUNK, 0, 1]]
    assert found.rank.tolist() == [1]


def test_all_of_the_best_in_one_chunk():
    logits = torch.randn(2, 2 * CHUNK, generator=torch.Generator().manual_seed(0))
    logits[:, CHUNK : CHUNK + 40] += 20
    compare(logits, torch.tensor([CHUNK + 3, 0]), 30)


@pytest.mark.parametrize("num_top", [0, 1, 9], ids=["none", "one", "more than there are tokens"])
@pytest.mark.parametrize("sampling", [None, untruncated(0.0, 0.5)], ids=["raw", "processed"])
def test_number_of_alternatives(num_top: int, sampling: Sampling | None):
    compare(
        torch.tensor([[0.0, 2.0, 1.0, 2.0, -1.0], [3.0, 0.0, 0.0, 0.0, 0.0]]), torch.tensor([2, 0]), num_top, sampling
    )


def test_tokens_that_cannot_occur_come_last():
    logits = torch.full((3, CHUNK + 9), -torch.inf)
    logits[0, CHUNK + 3] = 1.0
    logits[1, [4, CHUNK]] = torch.tensor([-3.0, 8.0])
    logits[2, 2:] = 0.0
    compare(logits, torch.tensor([0, 4, 1]), 5)
    compare(logits, torch.tensor([CHUNK + 3, 5, 2]), 5, untruncated(1.0, 0.3, 0.0))


@pytest.mark.parametrize("sampling", [None, untruncated(1.0, 0.0, 0.7, 1.0)], ids=["raw", "processed"])
@pytest.mark.parametrize("token", [0, 3])
def test_rows_without_a_distribution(sampling: Sampling | None, token: int):
    logits = torch.randn(4, CHUNK + 77, generator=torch.Generator().manual_seed(3))
    logits[0, CHUNK + 5] = torch.nan
    logits[1, 3] = torch.nan
    logits[2] = -torch.inf
    logits[3, 9] = torch.inf
    compare(logits, torch.full((4,), token), 3, sampling)


def test_rows_lie_apart():
    wide = torch.full((3, 200), torch.nan)
    wide[:, :101] = torch.randn(3, 101, generator=torch.Generator().manual_seed(4))
    assert not compare(wide[:, :101], torch.tensor([0, 50, 100]), 3).token_logprob.isnan().any()


@pytest.mark.parametrize("is_mixed", [False, True], ids=["cutting", "mixed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_truncated_rows(dtype: torch.dtype, is_mixed: bool):
    settings = [PLAIN, (0.8, 5, 1.0, 0.0), (1.0, 0, 0.6, 0.0), (1.2, 0, 1.0, 0.2), GREEDY, (0.9, 20, 0.7, 0.02)]
    logits, _ = random_rows(len(settings), CHUNK + 500, dtype)
    for token_ids in (logits.argmax(dim=1), logits.argmin(dim=1)):
        compare(logits, token_ids, 8, replace(sampling_of(*settings), is_mixed=is_mixed))


@pytest.mark.gpu
def test_rows_beyond_the_reach_of_32_bits():
    """6 GiB of logits."""
    logits, token_ids = random_rows(3, 128_255, torch.bfloat16)
    apart = torch.empty(3, 2**30, dtype=torch.bfloat16, device=DEVICE)[:, : logits.shape[1]]
    apart.copy_(logits)
    compare(apart, token_ids, 20)


def test_no_rows():
    found = compare(torch.zeros(0, 7), torch.zeros(0, dtype=torch.long), 3)
    assert found.top_token_ids.shape == (0, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"num_top": -1}, "num_top must be 0 or more, found -1", id="negative number"),
        pytest.param({"logits": torch.zeros(2, 5, dtype=torch.float64)}, "found torch.float64", id="float64 logits"),
        pytest.param({"token_ids": torch.zeros(3, dtype=torch.long)}, r"one int64 per row, \[2\]", id="other rows"),
        pytest.param({"sampling": untruncated(1.0)}, r"one float32 per row, \[2\]", id="other requests"),
    ],
)
def test_arguments_that_do_not_fit_are_an_error(change: dict, message: str):
    arguments = {"logits": torch.zeros(2, 5), "token_ids": torch.zeros(2, dtype=torch.long), "num_top": 1} | change
    with pytest.raises(ValueError, match=message):
        logprobs(**arguments)


LOGITS = torch.tensor([[0.0, 2.0, 1.0, 2.0, -1.0], [3.0, 0.0, 0.0, 0.0, 0.0]])
SAMPLING = Sampling(torch.tensor([0.5, 1.0]), torch.tensor([3, 0]), torch.ones(2), torch.zeros(2))


def test_raw_is_a_log_softmax_before_temperature_and_cuts():
    found = reference(LOGITS, torch.tensor([2, 0]), 2)
    expected = torch.log_softmax(LOGITS.double(), dim=1)
    torch.testing.assert_close(found.token_logprob, expected[[0, 1], [2, 0]].float())
    assert found.top_token_ids.tolist() == [[1, 3], [0, 1]]
    torch.testing.assert_close(found.top_logprobs, expected[[[0], [1]], found.top_token_ids].float())


def test_processed_is_the_distribution_tokens_are_drawn_from():
    found = reference(LOGITS, torch.tensor([4, 1]), 4, SAMPLING)
    expected = process(LOGITS, SAMPLING)
    assert found.token_logprob[0] == -torch.inf
    torch.testing.assert_close(found.token_logprob[1], expected[1, 1].float())
    assert found.top_token_ids[0, :3].tolist() == [1, 3, 2]
    torch.testing.assert_close(found.top_logprobs[0, :3], expected[0, [1, 3, 2]].float())
    assert found.top_logprobs[0, 3] == -torch.inf


@pytest.mark.parametrize(("token", "rank"), [(1, 1), (3, 1), (2, 3), (0, 4), (4, 5)])
def test_rank_counts_more_probable_tokens(token: int, rank: int):
    assert reference(LOGITS[:1], torch.tensor([token]), 0).rank.tolist() == [rank]


def test_temperature_zero_is_certain():
    greedy = Sampling(torch.zeros(2), torch.zeros(2, dtype=torch.long), torch.ones(2), torch.zeros(2))
    found = reference(LOGITS, torch.tensor([1, 0]), 1, greedy)
    assert found.token_logprob.tolist() == [0.0, 0.0]
    assert found.top_token_ids.tolist() == [[1], [0]]


def test_the_reference_refuses_a_negative_number():
    with pytest.raises(ValueError, match="num_top must be 0 or more, found -1"):
        reference(LOGITS, torch.tensor([0, 0]), -1)
