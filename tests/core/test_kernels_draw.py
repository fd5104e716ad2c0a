"""The drawing kernels against the reference on the same streams: where rows may be cut, and where nothing is, which one
launch decides."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.contract import RowStats, Sampling, Streams
from kernels.random.streams import Purpose
from kernels.reference.coupled import coupled_draw as reference_coupled_draw
from kernels.reference.draw import draw as reference_draw
from kernels.reference.truncation import sampling_rows
from tests.support.kernel_rounds import (
    DEVICE,
    MIXED,
    UNCUT,
    always,
    assert_same_drawn,
    checked_draw,
    moved,
    spaced,
    streams_of,
)
from tests.support.random_round import GREEDY, PLAIN, Setting, sampling_of

DTYPES = pytest.mark.parametrize("dtype", always(torch.float32, torch.bfloat16, on_a_gpu=[torch.float16]), ids=str)
KINDS = pytest.mark.parametrize("settings", [MIXED, UNCUT], ids=["cutting", "uncut"])
COUPLED = pytest.mark.parametrize("coupled", [False, True], ids=["draw", "coupled draw"])


def rows_of(num_rows: int, vocab_size: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(num_rows, vocab_size, generator=generator)).to(dtype).to(DEVICE)


def inputs(settings: list[Setting], seed: int, truncates: bool | None = None) -> tuple[Sampling, Streams]:
    """truncates: None promises it of settings that cut nothing."""
    cuts = any(each[1:] != PLAIN[1:] for each in settings) if truncates is None else truncates
    sampling = replace(sampling_of(*settings), truncates=cuts)
    return moved(sampling, DEVICE), moved(streams_of(len(settings), seed), DEVICE)


@COUPLED
@DTYPES
@KINDS
@pytest.mark.parametrize("vocab_size", always(63, on_a_gpu=[300]))
def test_mixed_batch(coupled: bool, dtype: torch.dtype, settings: list[Setting], vocab_size: int):
    checked_draw(rows_of(6, vocab_size, dtype, seed=1), *inputs(settings, 1), coupled=coupled)


@COUPLED
def test_each_kind_of_a_mixed_batch_draws_what_it_draws_alone(coupled: bool):
    """Would catch a launch that serves requests of the other kind, or that leaves one out."""
    logits, (sampling, streams) = rows_of(6, 63, seed=20), inputs(MIXED, 20)
    mixed = checked_draw(logits, replace(sampling, is_mixed=True), streams, coupled=coupled)
    cuts = torch.tensor([each[1:] != PLAIN[1:] for each in MIXED], device=DEVICE)
    for kind, truncates in ((~cuts, False), (cuts, True)):
        rows = replace(sampling_rows(sampling, kind.nonzero()[:, 0]), truncates=truncates)
        here = Streams(streams.seeds[kind], streams.positions[kind], streams.rounds[kind])
        alone = checked_draw(logits[kind], rows, here, coupled=coupled)
        assert torch.equal(mixed.token_ids[kind], alone.token_ids)


SEVERAL_CHUNKS = [PLAIN, (0.7, 0, 0.9, 0.0), GREEDY, (1.0, 50, 1.0, 0.0)]


@COUPLED
@pytest.mark.parametrize("settings", [SEVERAL_CHUNKS, UNCUT[:4]], ids=["cutting", "uncut"])
@pytest.mark.parametrize("vocab_size", always(2049, on_a_gpu=[2048, 5000]))
def test_rows_of_several_chunks(coupled: bool, settings: list[Setting], vocab_size: int):
    checked_draw(rows_of(4, vocab_size, seed=2), *inputs(settings, 2), coupled=coupled)


@COUPLED
def test_rows_that_several_programs_read(coupled: bool):
    checked_draw(rows_of(3, 17_000, torch.bfloat16, seed=2), *inputs(UNCUT[:3], 2), coupled)


@pytest.mark.parametrize("truncates", [True, False], ids=["cutting", "uncut"])
@pytest.mark.parametrize("vocab_size", [1, 2, 3])
def test_tiny_vocabularies(vocab_size: int, truncates: bool):
    checked_draw(rows_of(4, vocab_size, seed=3), *inputs([PLAIN, GREEDY] * 2, 3, truncates))


@pytest.mark.parametrize("truncates", [True, False], ids=["cutting", "uncut"])
def test_many_draws_from_one_row_reach_every_token(truncates: bool):
    logits = torch.tensor([0.0, 1.0, -1.0, 0.5], device=DEVICE).expand(20, 4)
    drawn = checked_draw(logits, *inputs([PLAIN] * 20, 4, truncates))
    assert drawn.token_ids.unique().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("purpose", [Purpose.draft, Purpose.bonus], ids=lambda purpose: purpose.name)
def test_each_purpose_has_its_own_stream(purpose: Purpose):
    checked_draw(rows_of(6, 63, seed=5), *inputs([PLAIN] * 6, 5), purpose=purpose)


@COUPLED
@KINDS
def test_smaller_draft_vocabulary_gives_target_ids(coupled: bool, settings: list[Setting]):
    ids = torch.randperm(300, generator=torch.Generator().manual_seed(6))[:120].to(DEVICE)
    drawn = checked_draw(
        rows_of(6, 120, seed=6), *inputs(settings, 6), coupled=coupled, vocab_size=300, draft_to_target=ids
    )
    assert bool(torch.isin(drawn.token_ids, ids).all())


@COUPLED
def test_leading_draft_vocabulary(coupled: bool):
    checked_draw(rows_of(6, 120, seed=7), *inputs(MIXED, 7), coupled=coupled, vocab_size=301)


@COUPLED
@KINDS
def test_rows_further_apart_than_their_length(coupled: bool, settings: list[Setting]):
    checked_draw(spaced(rows_of(6, 63, torch.bfloat16, seed=8), 3), *inputs(settings, 8), coupled=coupled)


@COUPLED
def test_greedy_ties_go_to_the_lowest_id(coupled: bool):
    logits = torch.zeros(3, 4100, device=DEVICE)
    logits[1, [2049, 4099]] = 1.0
    logits[2, [2047, 2048]] = 1.0
    assert checked_draw(logits, *inputs([GREEDY] * 3, 9), coupled=coupled).token_ids.tolist() == [0, 2049, 2047]


@COUPLED
@pytest.mark.parametrize("truncates", [True, False], ids=["cutting", "uncut"])
@pytest.mark.parametrize("setting", [PLAIN, GREEDY, (1.0, 5, 0.9, 0.0)], ids=["sampled", "greedy", "truncated"])
def test_rows_without_a_distribution_are_flagged(coupled: bool, setting: Setting, truncates: bool):
    logits = rows_of(5, 63, seed=10)
    logits[0] = -torch.inf
    logits[1, 62] = torch.nan
    logits[2, 0] = torch.inf
    logits[3, 1:] = -torch.inf
    drawn = checked_draw(logits, *inputs([setting] * 5, 10, truncates or setting[1] > 0), coupled=coupled)
    assert drawn.invalid.tolist() == [True, True, True, False, False]
    assert drawn.token_ids[:4].tolist() == [0, 0, 0, 0]


@COUPLED
@pytest.mark.parametrize("settings", [[PLAIN, GREEDY, (0.7, 4, 1.0, 0.0)] * 2, UNCUT], ids=["cutting", "uncut"])
def test_banned_tokens_are_never_drawn(coupled: bool, settings: list[Setting]):
    logits = rows_of(6, 4500, seed=11)
    logits[:, :2300] = -torch.inf
    logits[:, 4000:] = -torch.inf
    drawn = checked_draw(logits, *inputs(settings, 11), coupled=coupled)
    assert bool(((drawn.token_ids >= 2300) & (drawn.token_ids < 4000)).all())


@KINDS
@pytest.mark.parametrize("layout", ["own", "views of a cache"])
def test_row_statistics(layout: str, settings: list[Setting]):
    """They give the probability of every token, also of those that were not drawn."""
    from kernels.draw import draw

    logits = rows_of(6, 2100, seed=12)
    logits[5] = -torch.inf
    sampling, streams = inputs(settings, 12)
    maximum = torch.full((6, 3), -5.0, device=DEVICE)
    normalizer = torch.full((6, 3), -5.0, dtype=torch.float64, device=DEVICE)
    threshold = torch.full((6, 3), -5.0, device=DEVICE)
    column = 1
    kept = RowStats(maximum[:, column], normalizer[:, column], threshold[:, column])
    if layout == "own":
        kept = RowStats(*(getattr(kept, name).clone() for name in ("maximum", "normalizer", "threshold")))
    expected = RowStats(*(torch.empty_like(getattr(kept, name)) for name in ("maximum", "normalizer", "threshold")))
    reference_draw(logits, sampling, streams, Purpose.draft, row_stats=expected)
    draw(logits, sampling, streams, Purpose.draft, row_stats=kept)
    valid = torch.arange(6, device=DEVICE) != 5
    assert torch.equal(kept.maximum[valid], expected.maximum[valid])
    torch.testing.assert_close(kept.normalizer, expected.normalizer, atol=0, rtol=2e-6, equal_nan=True)
    # A threshold may be any number between two logits: what counts is which tokens it keeps.
    cut, expected_cut = (logits < stats.threshold[:, None] for stats in (kept, expected))
    assert torch.equal(cut[valid], expected_cut[valid])
    if layout != "own":
        assert bool((maximum[:, [0, 2]] == -5).all() and (normalizer[:, [0, 2]] == -5).all())


def test_workspace_is_reused_by_calls_of_other_sizes():
    from kernels.draw import coupled_draw, draw
    from kernels.launch.workspace import Workspace

    workspace = Workspace()
    for num_rows, vocab_size in [(2, 63), (4, 2100), (1, 300), (4, 2100)]:
        logits = rows_of(num_rows, vocab_size, seed=num_rows)
        sampling, streams = inputs(MIXED[:num_rows], num_rows)
        found = draw(logits, sampling, streams, Purpose.draft, workspace=workspace)
        assert_same_drawn(found, reference_draw(logits, sampling, streams, Purpose.draft))
        found = coupled_draw(logits, sampling, streams, vocab_size, workspace=workspace)
        assert_same_drawn(found, reference_coupled_draw(logits, sampling, streams, vocab_size))


@COUPLED
def test_no_rows(coupled: bool):
    none = torch.zeros(0, dtype=torch.long, device=DEVICE)
    real = torch.zeros(0, device=DEVICE)
    drawn = checked_draw(
        torch.zeros(0, 5, device=DEVICE), Sampling(real, none, real, real), Streams(none, none, none), coupled
    )
    assert drawn.token_ids.shape == (0,)
