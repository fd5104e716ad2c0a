"""Children of a node drawn by the kernels: those of the reference on the same streams."""

import pytest
import torch

from kernels.contract import NO_TOKEN, RowStats, SiblingDraws, TokenMask
from kernels.draw import draw
from kernels.launch.workspace import Workspace
from kernels.random.streams import Purpose
from kernels.reference.draw_children import draw_children as reference_draw_children
from kernels.tree.draw_children import draw_children
from tests.support.kernel_rounds import DEVICE, MIXED, UNCUT, always, moved, random_words, spaced, streams_of
from tests.support.random_round import GREEDY, PLAIN, sampling_of

SIBLINGS = pytest.mark.parametrize("siblings", SiblingDraws, ids=lambda siblings: siblings.value)


def rows_of(num_rows: int, vocab_size: int, dtype: torch.dtype, num_extra: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(vocab_size)
    return spaced((3 * torch.randn(num_rows, vocab_size, generator=generator)).to(dtype), num_extra).to(DEVICE)


def branches_of(num_rows: int, num_children: int) -> torch.Tensor:
    return (3 + torch.arange(num_children)).expand(num_rows, -1).to(DEVICE)


@SIBLINGS
@pytest.mark.parametrize("settings", [UNCUT, MIXED[1:5]], ids=["uncut", "cutting"])
@pytest.mark.parametrize(
    ("vocab_size", "dtype"),
    always((63, torch.float32), (2051, torch.bfloat16), on_a_gpu=[(5000, torch.float16), (128_256, torch.bfloat16)]),
    ids=str,
)
def test_children(siblings: SiblingDraws, settings: list, vocab_size: int, dtype: torch.dtype):
    """Greedy rows beside sampled ones. Would catch a child drawn with another's number, a chunk whose mass still holds
    a sibling, and a greedy child out of order. The last row has no distribution."""
    if vocab_size > 63 and settings is not UNCUT and DEVICE.type == "cpu":
        settings = settings[:2]
    settings = [*settings, PLAIN, GREEDY]
    count = len(settings)
    logits = rows_of(count, vocab_size, dtype, num_extra=1)
    logits[-2:, 5] = torch.nan
    sampling, streams = moved(sampling_of(*settings), DEVICE), moved(streams_of(count, 1), DEVICE)
    if settings[0] is UNCUT[0]:
        sampling = type(sampling)(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, truncates=False)
    arguments = (logits, sampling, streams, siblings, branches_of(count, 4))
    workspace, found_stats, stats = Workspace(), RowStats.empty(count, device=DEVICE), RowStats.empty(count)
    found = draw_children(*arguments, row_stats=found_stats, workspace=workspace)
    stats = moved(stats, DEVICE)
    expected = reference_draw_children(*arguments, row_stats=stats)
    assert found.tolist() == expected.tolist() and expected[-2:].eq(NO_TOKEN).all()
    assert workspace.busy_counters() == []
    assert torch.equal(found_stats.maximum[:-2], stats.maximum[:-2])
    torch.testing.assert_close(found_stats.normalizer, stats.normalizer, rtol=1e-6, atol=0, equal_nan=True)


@SIBLINGS
def test_rows_with_few_tokens(siblings: SiblingDraws):
    """Masked, in a smaller vocabulary: no token is left for the last of distinct children, and none for greedy ones."""
    settings = [PLAIN, GREEDY, PLAIN]
    logits = rows_of(3, 6, torch.float32)
    logits[0, 2:] = -torch.inf
    logits[1, 3:] = -torch.inf
    to_target = torch.tensor([7, 3, 9, 20, 21, 8], device=DEVICE)
    words = random_words(3, 32, torch.Generator().manual_seed(0)).to(DEVICE)
    words[0] = (1 << 7) | (1 << 20)
    mask = TokenMask(words, torch.tensor([-1, -1, 0], device=DEVICE))
    sampling, streams = moved(sampling_of(*settings), DEVICE), moved(streams_of(3, 5), DEVICE)
    arguments = (logits, sampling, streams, siblings, branches_of(3, 4), to_target, mask)
    found = draw_children(*arguments)
    assert found.tolist() == reference_draw_children(*arguments).tolist()
    assert (found[1] == NO_TOKEN).tolist() == [False, False, False, True]
    assert (found[0, 2:] == NO_TOKEN).all() == (siblings is SiblingDraws.distinct)


def test_a_row_has_a_further_child_while_enough_of_it_is_left():
    """Would catch children that verification takes for none of their row's (kernels.methods.SMALLEST_REST)."""
    logits = rows_of(2, 200, torch.float32) / 3
    logits[0] -= 57
    logits[1] -= 75
    logits[:, [7, 9]] = torch.tensor([0.0, -0.4], device=DEVICE)
    sampling, streams = moved(sampling_of(PLAIN, PLAIN), DEVICE), moved(streams_of(2, 5), DEVICE)
    arguments = (logits, sampling, streams, SiblingDraws.distinct, branches_of(2, 4))
    found = draw_children(*arguments)
    assert found.tolist() == reference_draw_children(*arguments).tolist()
    assert (found == NO_TOKEN).tolist() == [[False] * 4, [False, False, True, True]]


def test_an_only_child_is_what_draw_draws():
    logits = rows_of(5, 300, torch.float32)
    sampling, streams = moved(sampling_of(*UNCUT[:5]), DEVICE), moved(streams_of(5, 2), DEVICE)
    first = torch.zeros(5, 1, dtype=torch.int64, device=DEVICE)
    found = draw_children(logits, sampling, streams, SiblingDraws.distinct, first)
    assert torch.equal(found[:, 0], draw(logits, sampling, streams, Purpose.draft).token_ids)


def test_what_does_not_fit_is_refused():
    logits = rows_of(2, 63, torch.float32)
    sampling, streams = moved(sampling_of(PLAIN, PLAIN), DEVICE), moved(streams_of(2, 0), DEVICE)
    with pytest.raises(ValueError, match=r"branches must be \[2, n\] int64"):
        draw_children(logits, sampling, streams, SiblingDraws.distinct, branches_of(3, 2))
