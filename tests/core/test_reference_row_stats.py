"""The row statistics that a draw leaves: every probability of the processed distribution follows from them."""

import pytest
import torch
from torch import Tensor

from kernels.contract import RowStats, Sampling, Streams
from kernels.random.streams import Purpose
from kernels.reference import truncation
from kernels.reference.draw import draw
from kernels.reference.truncation import process
from tests.support.random_round import GREEDY, PLAIN, Setting, sampling_of

pytestmark = pytest.mark.fast

SETTINGS = [PLAIN, (0.7, 0, 1.0, 0.0), (1.3, 5, 1.0, 0.0), (0.8, 0, 0.6, 0.0), (1.0, 0, 1.0, 0.1), (0.9, 30, 0.8, 0.02)]


def streams_of(num_rows: int) -> Streams:
    return Streams(torch.arange(num_rows), torch.full((num_rows,), 5), torch.ones(num_rows, dtype=torch.long))


def stats_of(logits: Tensor, sampling: Sampling) -> RowStats:
    """The statistics that a draw leaves, in places that held NaN."""
    fields = [torch.full((len(logits),), torch.nan, dtype=dtype) for dtype in (torch.float32, torch.float64)]
    stats = RowStats(fields[0], fields[1], fields[0].clone())
    draw(logits, sampling, streams_of(len(logits)), Purpose.draft, row_stats=stats)
    return stats


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_probabilities_follow_from_the_statistics(dtype: torch.dtype):
    logits = (4 * torch.randn(len(SETTINGS), 201, generator=torch.Generator().manual_seed(1))).to(dtype)
    sampling = sampling_of(*SETTINGS)
    stats = stats_of(logits, sampling)
    raw = logits.float()
    exponent = (raw.double() - stats.maximum.double()[:, None]) / sampling.temperature.double()[:, None]
    found = torch.where(raw >= stats.threshold[:, None], exponent.exp() / stats.normalizer[:, None], 0.0)
    expected = process(logits, sampling).exp()
    # Both sides are float64 sums over 201 terms in different order.
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0.0)


def test_threshold_is_the_smallest_logit_that_survives():
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0]]).repeat(4, 1)
    settings = [(0.5, 2, 1.0, 0.0), (0.5, 4, 1.0, 0.0), (1.0, 0, 1.0, 0.3), (1.0, 0, 1.0, 1e-9)]
    assert stats_of(logits, sampling_of(*settings)).threshold.tolist() == [2.0, -torch.inf, 2.0, -torch.inf]


def test_greedy_rows_have_normalizer_one_and_nothing_cut():
    logits = torch.tensor([[0.0, 3.0, 1.0], [5.0, 3.0, 1.0]])
    for settings in ([GREEDY, (0.0, 1, 1.0, 0.0)], [PLAIN, (0.0, 1, 1.0, 0.0)]):
        stats = stats_of(logits, sampling_of(*settings))
        assert stats.maximum.tolist() == [3.0, 5.0]
        assert stats.normalizer[1] == 1.0
        assert stats.threshold.tolist() == [-torch.inf] * 2


@pytest.mark.parametrize("setting", [PLAIN, GREEDY, (1.0, 2, 0.9, 0.1)], ids=["plain", "greedy", "truncated"])
def test_rows_without_a_distribution_have_no_normalizer(setting: Setting):
    logits = torch.tensor([[0.0, torch.nan, 0.0], [-torch.inf] * 3, [0.0, torch.inf, 0.0], [0.0, 1.0, -torch.inf]])
    stats = stats_of(logits, sampling_of(*[setting] * 4))
    assert stats.normalizer.isnan().tolist() == [True, True, True, False]


def test_statistics_are_written_into_views_of_a_cache():
    logits = torch.randn(3, 20, generator=torch.Generator().manual_seed(2))
    sampling = sampling_of(*SETTINGS[:3])
    maximum, normalizer, threshold = (torch.full((5, 4), -7.0, dtype=torch.float64) for _ in range(3))
    views = RowStats(maximum[:3, 1], normalizer[:3, 1], threshold[:3, 1])
    draw(logits, sampling, streams_of(3), Purpose.draft, row_stats=views)
    expected = stats_of(logits, sampling)
    assert torch.equal(maximum[:3, 1], expected.maximum.double())
    assert torch.equal(normalizer[:3, 1], expected.normalizer)
    for field in (maximum, normalizer, threshold):
        field[:3, 1] = -7.0
        assert (field == -7.0).all()


def test_a_promise_of_no_truncation_is_taken():
    """The settings are not looked at: here they break the promise, and nothing is cut."""
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(3))
    cutting = sampling_of(*[(0.7, 2, 0.5, 0.5)] * 6)
    promised = Sampling(cutting.temperature, cutting.top_k, cutting.top_p, cutting.min_p, truncates=False)
    assert torch.equal(process(logits, promised), process(logits, sampling_of(*[(0.7, 0, 1.0, 0.0)] * 6)))


def test_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch):
    logits = torch.randn(len(SETTINGS), 301, generator=torch.Generator().manual_seed(4))
    sampling = sampling_of(*SETTINGS)
    expected, rows = stats_of(logits, sampling), process(logits, sampling)
    monkeypatch.setattr(truncation, "ELEMENTS_PER_CHUNK", 602)
    assert torch.equal(process(logits, sampling), rows)
    found = stats_of(logits, sampling)
    assert torch.equal(found.normalizer, expected.normalizer) and torch.equal(found.threshold, expected.threshold)
