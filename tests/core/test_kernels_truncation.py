"""Top-k, top-p and min-p in the kernels: the same tokens survive as in the reference, ties included."""

import pytest
import torch
from torch import Tensor

from kernels.contract import RowStats
from kernels.random.streams import Purpose
from kernels.reference.draw import draw as reference_draw
from tests.support.kernel_rounds import (
    DEVICE,
    always,
    assert_same_drawn,
    kernel_round,
    moved,
    sampled_methods,
    streams_of,
)
from tests.support.random_round import Method, sampling_of, verification_of

SETTINGS = {
    "top-k 1": (1.0, 1, 1.0, 0.0),
    "top-k 5": (1.0, 5, 1.0, 0.0),
    "top-k one below the vocabulary": (1.0, 2099, 1.0, 0.0),
    "top-k beyond the vocabulary": (1.0, 10**6, 1.0, 0.0),
    "top-p tiny": (1.0, 0, 1e-6, 0.0),
    "top-p half": (0.7, 0, 0.5, 0.0),
    "top-p high": (1.0, 0, 0.99, 0.0),
    "top-p one below one": (1.0, 0, 1 - 2**-24, 0.0),
    "min-p": (1.0, 0, 1.0, 0.05),
    "min-p one": (1.3, 0, 1.0, 1.0),
    "top-k and top-p": (0.8, 50, 0.9, 0.0),
    "all three": (1.5, 100, 0.95, 0.02),
    "nothing": (1.0, 0, 1.0, 0.0),
    "greedy": (0.0, 3, 0.5, 0.1),
}


def normal_rows(num_rows: int, dtype: torch.dtype) -> Tensor:
    return (2 * torch.randn(num_rows, 2100, generator=torch.Generator().manual_seed(1))).to(dtype)


def tied_rows(num_rows: int, dtype: torch.dtype) -> Tensor:
    """Few different values, so that whole groups tie with the last survivor; one row is flat."""
    rows = normal_rows(num_rows, torch.float32).round()
    rows[0] = 1.0
    return rows.to(dtype)


def peaked_rows(num_rows: int, dtype: torch.dtype) -> Tensor:
    """One token far above the rest, far beyond what a histogram of distances covers."""
    rows = normal_rows(num_rows, torch.float32)
    rows[:, 1234] = 90.0
    return rows.to(dtype)


@pytest.mark.parametrize("dtype", always(torch.bfloat16, on_a_gpu=[torch.float32, torch.float16]), ids=str)
@pytest.mark.parametrize("rows", [normal_rows, tied_rows, peaked_rows], ids=["normal", "tied", "peaked"])
def test_the_same_tokens_survive(rows, dtype: torch.dtype):
    from kernels.draw import draw

    sampling, num_rows = moved(sampling_of(*SETTINGS.values()), DEVICE), len(SETTINGS)
    logits, streams = rows(num_rows, dtype).to(DEVICE), moved(streams_of(num_rows, 2), DEVICE)
    found, expected = (RowStats.empty(num_rows, device=DEVICE) for _ in range(2))
    drawn = draw(logits, sampling, streams, Purpose.draft, row_stats=found)
    assert_same_drawn(drawn, reference_draw(logits, sampling, streams, Purpose.draft, row_stats=expected))
    num_kept = [(logits.float() >= stats.threshold[:, None]).sum(dim=1).tolist() for stats in (found, expected)]
    differing = {name for name, kept, wanted in zip(SETTINGS, *num_kept, strict=True) if kept != wanted}
    # What is cut there is lighter than the rounding of a float32 sum: only its mass can be held to account.
    assert differing <= {"top-p one below one"}
    torch.testing.assert_close(found.normalizer, expected.normalizer, rtol=1e-6, atol=0)


LARGE_SETTINGS = {
    "top-k among the candidates": (1.0, 40, 1.0, 0.0),
    "top-k below the candidates": (1.0, 2500, 1.0, 0.0),
    "top-k of nearly all": (1.0, 19_999, 1.0, 0.0),
    "top-p of the largest candidates": (0.5, 0, 0.6, 0.0),
    "top-p among the candidates": (0.7, 0, 0.95, 0.0),
    "top-p of a flat row": (20.0, 0, 0.9, 0.0),
    "top-k and top-p": (0.9, 2000, 0.9, 0.0),
    "min-p below top-p": (1.0, 0, 0.9, 1e-4),
    "min-p alone": (1.0, 0, 1.0, 0.05),
    "min-p of nearly all": (1.0, 0, 1.0, 1e-9),
}


def large_rows(num_rows: int, dtype: torch.dtype) -> Tensor:
    """So many tokens that only some groups of them can be listed."""
    return (2 * torch.randn(num_rows, 20_000, generator=torch.Generator().manual_seed(4))).to(dtype)


def rows_with_a_plateau(num_rows: int, dtype: torch.dtype) -> Tensor:
    """Two in three tokens tie with one another, a few dozen stand above them."""
    rows = large_rows(num_rows, torch.float32)
    rows[:, ::3] = rows[:, 1::3][:, : rows[:, ::3].shape[1]] = 5.5
    return rows.to(dtype)


def rows_of_few(num_rows: int, dtype: torch.dtype) -> Tensor:
    """All but 3,000 neighbours and one far token are banned."""
    rows = large_rows(num_rows, torch.float32)
    rows[:, 3000:-1] = -torch.inf
    return rows.to(dtype)


def rows_in_clumps(num_rows: int, dtype: torch.dtype) -> Tensor:
    """Far from normal: a token far above, clumps far apart, zeros of both signs, and the least finite values.

    Would catch a search that takes estimates for bounds, or does not end where two keys have one value.
    """
    rows = large_rows(num_rows, torch.float32)
    rows[:, ::3] -= 1000.0
    rows[:, 1::6], rows[:, 4::12], rows[:, 5::12] = -20_000.0, 0.0, -0.0
    rows[:, 2::24] = torch.finfo(dtype).min
    rows[:, 7] = 20.0
    return rows.to(dtype)


def rows_in_order(num_rows: int, dtype: torch.dtype) -> Tensor:
    """The largest logits side by side at the end, where the sample of a row has few.

    So thousands more lie above its bound than there is room for, in few groups: would catch a list of groups that is
    read after tokens have been written over it.
    """
    rows = 2 * torch.randn(num_rows, 24_000, generator=torch.Generator().manual_seed(6))
    return rows.sort(dim=1).values.to(dtype)


@pytest.mark.parametrize("dtype", always(torch.bfloat16, on_a_gpu=[torch.float32, torch.float16]), ids=str)
@pytest.mark.parametrize("rows", [large_rows, rows_with_a_plateau, rows_of_few, rows_in_clumps, rows_in_order])
def test_the_same_tokens_survive_of_a_large_vocabulary(rows, dtype: torch.dtype):
    from kernels.draw import draw

    sampling, num_rows = moved(sampling_of(*LARGE_SETTINGS.values()), DEVICE), len(LARGE_SETTINGS)
    logits, streams = rows(num_rows, dtype).to(DEVICE), moved(streams_of(num_rows, 5), DEVICE)
    found, expected = (RowStats.empty(num_rows, device=DEVICE) for _ in range(2))
    draw(logits, sampling, streams, Purpose.draft, row_stats=found)
    reference_draw(logits, sampling, streams, Purpose.draft, row_stats=expected)
    num_kept = [(logits.float() >= stats.threshold[:, None]).sum(dim=1).tolist() for stats in (found, expected)]
    assert num_kept[0] == num_kept[1]
    torch.testing.assert_close(found.normalizer, expected.normalizer, rtol=1e-6, atol=0)
    survivors = torch.where(logits.float() >= found.threshold[:, None], logits.float(), torch.inf)
    cut = found.threshold > -torch.inf
    assert torch.equal(survivors.amin(dim=1)[cut], found.threshold[cut]), "a threshold is a value of its row"


def test_candidates_behind_the_first_marks():
    """A thread marks groups in words of 32 steps, and most groups of so large a vocabulary have one candidate.

    Would catch groups of a later word that are listed as of the first, and a list that is written over before it is
    read.
    """
    from kernels.draw import draw

    settings = [(1.0, 300, 1.0, 0.0), (0.7, 0, 0.95, 0.0)]
    rows = 2 * torch.randn(len(settings), 140_000, generator=torch.Generator().manual_seed(8))
    rows[:, 133_000:133_200] += 6.0
    logits, sampling = rows.bfloat16().to(DEVICE), moved(sampling_of(*settings), DEVICE)
    streams = moved(streams_of(len(settings), 5), DEVICE)
    found, expected = (RowStats.empty(len(settings), device=DEVICE) for _ in range(2))
    drawn = draw(logits, sampling, streams, Purpose.draft, row_stats=found)
    assert_same_drawn(drawn, reference_draw(logits, sampling, streams, Purpose.draft, row_stats=expected))
    num_kept = [(logits.float() >= stats.threshold[:, None]).sum(dim=1).tolist() for stats in (found, expected)]
    assert num_kept[0] == num_kept[1]


@pytest.mark.parametrize("dtype", always(torch.bfloat16, torch.float32, on_a_gpu=[torch.float16]), ids=str)
def test_tokens_at_zero_are_counted_once(dtype: torch.dtype):
    """Unused rows of an output matrix give logits of exactly 0; here so many that the bound of a row is 0.

    Would catch a search below the bound that weighs every 0 again.
    """
    from kernels.draw import draw

    settings = [(1.0, 0, 0.95, 0.0), (1.0, 0, 0.98, 0.0), (1.0, 3500, 1.0, 0.0), (1.0, 3400, 0.99, 0.0)]
    generator = torch.Generator().manual_seed(0)
    rows = 2 * torch.randn(len(settings), 8192, generator=generator) - 2.5
    rows[:, torch.randperm(8192, generator=generator)[:2500]] = 0.0
    logits, sampling = rows.to(dtype).to(DEVICE), moved(sampling_of(*settings), DEVICE)
    streams = moved(streams_of(len(settings), 5), DEVICE)
    found, expected = (RowStats.empty(len(settings), device=DEVICE) for _ in range(2))
    draw(logits, sampling, streams, Purpose.draft, row_stats=found)
    reference_draw(logits, sampling, streams, Purpose.draft, row_stats=expected)
    num_kept = [(logits.float() >= stats.threshold[:, None]).sum(dim=1).tolist() for stats in (found, expected)]
    assert num_kept[0] == num_kept[1]
    torch.testing.assert_close(found.normalizer, expected.normalizer, rtol=1e-6, atol=0)


@sampled_methods(Method.block)
def test_verification_under_every_truncation(method: Method):
    batch = kernel_round(list(SETTINGS.values()), [2] * len(SETTINGS), 300, torch.bfloat16, seed=3)
    found, expected = batch.found(verification_of(method)), batch.expected(verification_of(method))
    assert found.token_ids.tolist() == expected.token_ids.tolist()
    assert not found.invalid.any()
