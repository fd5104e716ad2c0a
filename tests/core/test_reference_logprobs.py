"""Log-probabilities of output tokens, raw and processed."""

import pytest
import torch

from kernels.contract import Sampling
from kernels.reference.logprobs import logprobs
from kernels.reference.truncation import process

LOGITS = torch.tensor([[0.0, 2.0, 1.0, 2.0, -1.0], [3.0, 0.0, 0.0, 0.0, 0.0]])
SAMPLING = Sampling(torch.tensor([0.5, 1.0]), torch.tensor([3, 0]), torch.ones(2), torch.zeros(2))


def test_raw_is_a_log_softmax_before_temperature_and_cuts():
    found = logprobs(LOGITS, torch.tensor([2, 0]), 2)
    expected = torch.log_softmax(LOGITS.double(), dim=1)
    torch.testing.assert_close(found.token_logprob, expected[[0, 1], [2, 0]].float())
    assert found.top_token_ids.tolist() == [[1, 3], [0, 1]]
    torch.testing.assert_close(found.top_logprobs, expected[[[0], [1]], found.top_token_ids].float())


def test_processed_is_the_distribution_tokens_are_drawn_from():
    found = logprobs(LOGITS, torch.tensor([4, 1]), 4, SAMPLING)
    expected = process(LOGITS, SAMPLING)
    assert found.token_logprob[0] == -torch.inf
    torch.testing.assert_close(found.token_logprob[1], expected[1, 1].float())
    assert found.top_token_ids[0, :3].tolist() == [1, 3, 2]
    torch.testing.assert_close(found.top_logprobs[0, :3], expected[0, [1, 3, 2]].float())
    assert found.top_logprobs[0, 3] == -torch.inf


@pytest.mark.parametrize(("token", "rank"), [(1, 1), (3, 1), (2, 3), (0, 4), (4, 5)])
def test_rank_counts_more_probable_tokens(token: int, rank: int):
    assert logprobs(LOGITS[:1], torch.tensor([token]), 0).rank.tolist() == [rank]


def test_no_alternatives():
    found = logprobs(LOGITS, torch.tensor([0, 0]), 0)
    assert found.top_token_ids.shape == found.top_logprobs.shape == (2, 0)


def test_more_alternatives_than_tokens():
    assert logprobs(LOGITS, torch.tensor([0, 0]), 9).top_token_ids.shape == (2, 5)


def test_negative_number_of_alternatives_is_an_error():
    with pytest.raises(ValueError, match="num_top must be 0 or more, found -1"):
        logprobs(LOGITS, torch.tensor([0, 0]), -1)


def test_temperature_zero_is_certain():
    greedy = Sampling(torch.zeros(2), torch.zeros(2, dtype=torch.long), torch.ones(2), torch.zeros(2))
    found = logprobs(LOGITS, torch.tensor([1, 0]), 1, greedy)
    assert found.token_logprob.tolist() == [0.0, 0.0]
    assert found.top_token_ids.tolist() == [[1], [0]]
