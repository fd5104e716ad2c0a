"""What the launchers refuse before anything is launched: a kernel would read or write beside its memory instead."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch

from kernels.contract import RowStats, Verification, VerificationMethod
from kernels.draw import coupled_draw, draw
from kernels.random.streams import Purpose
from tests.support.kernel_rounds import DEVICE, kernel_round, streams_of
from tests.support.own_methods import HALF_STRICT
from tests.support.random_round import PLAIN, sampling_of

NUM_ROWS, VOCAB = 3, 63


def wrong_stats(what: str, *size: int) -> RowStats:
    """Statistics of rows of which one field is wrong."""
    good = RowStats.empty(*size, device=DEVICE)
    match what:
        case "too short":
            return RowStats.empty(size[0] - 1, *size[1:], device=DEVICE)
        case "one field too short":
            return replace(good, threshold=good.threshold[:-1])
        case "float32 normalizer":
            return replace(good, normalizer=good.normalizer.float())
        case "float64 threshold":
            return replace(good, threshold=good.threshold.double())
        case "other strides":
            return replace(good, normalizer=torch.empty(*size, 2, dtype=torch.float64, device=DEVICE)[..., 0])
        case _:
            return RowStats(*(getattr(good, name)[None] for name in ("maximum", "normalizer", "threshold")))


WRONG_STATS = pytest.mark.parametrize(
    "what",
    [
        "too short",
        "one field too short",
        "float32 normalizer",
        "float64 threshold",
        "other strides",
        "one dimension more",
    ],
)


def drawing(is_coupled: bool) -> Callable:
    """Either draw of three rows; takes the rest by name."""
    logits = torch.zeros(NUM_ROWS, VOCAB, device=DEVICE)
    sampling, streams = sampling_of(*[PLAIN] * NUM_ROWS), streams_of(NUM_ROWS, seed=1)
    if is_coupled:
        return partial(coupled_draw, logits, sampling, streams, VOCAB)
    return partial(draw, logits, sampling, streams, Purpose.draft)


EITHER_DRAW = pytest.mark.parametrize("is_coupled", [False, True], ids=["draw", "coupled draw"])


@WRONG_STATS
@EITHER_DRAW
def test_room_for_statistics_that_does_not_fit_the_rows_of_a_draw(is_coupled: bool, what: str):
    with pytest.raises(ValueError, match=r"the fields of row_stats must be \[3\] or more, with the same shape and str"):
        drawing(is_coupled)(row_stats=wrong_stats(what, NUM_ROWS))


@WRONG_STATS
def test_statistics_that_do_not_fit_the_draft_logit_cache(what: str):
    batch = kernel_round([PLAIN] * NUM_ROWS, [2] * NUM_ROWS, VOCAB)
    assert batch.draft.logits is not None
    stats = wrong_stats(what, batch.draft.logits.shape[0], 2)
    with pytest.raises(ValueError, match=r"the fields of draft.row_stats must be \[5, 2\] or more, with the same"):
        replace(batch, draft=replace(batch.draft, row_stats=stats)).found(Verification(VerificationMethod.block))


WRONG_MAPS = pytest.mark.parametrize(
    "wrong",
    # Made where it is used: a copy to a device would close the gaps.
    [torch.arange(VOCAB - 1), torch.arange(VOCAB).int(), torch.arange(2 * VOCAB, device=DEVICE)[::2]],
    ids=["too short", "int32", "with gaps"],
)


@WRONG_MAPS
@EITHER_DRAW
def test_a_map_of_ids_that_does_not_fit_the_rows_of_a_draw(is_coupled: bool, wrong: torch.Tensor):
    with pytest.raises(ValueError, match=r"^draft_to_target must be \[63\] int64 without gaps"):
        drawing(is_coupled)(draft_to_target=wrong.to(DEVICE))


@WRONG_MAPS
def test_a_map_of_ids_that_does_not_fit_the_draft_logit_cache(wrong: torch.Tensor):
    batch = kernel_round([PLAIN] * NUM_ROWS, [2] * NUM_ROWS, VOCAB)
    wrong_draft = replace(batch.draft, draft_to_target=wrong.to(DEVICE))
    with pytest.raises(ValueError, match=r"^draft.draft_to_target must be \[63\] int64 without gaps"):
        replace(batch, draft=wrong_draft).found(Verification(VerificationMethod.block))


def test_a_tree_is_refused_by_both_cores():
    batch = kernel_round([PLAIN], [2], VOCAB)
    tree = replace(batch, draft=replace(batch.draft, parents=torch.full_like(batch.draft.token_ids, -1)))
    for verified in (tree.found, tree.expected):
        with pytest.raises(ValueError, match=r"draft\.parents: expected None"):
            verified(Verification(VerificationMethod.strict))


def test_a_method_of_ones_own_is_refused_where_the_reference_alone_runs_it():
    batch = kernel_round([PLAIN], [2], VOCAB)
    with pytest.raises(ValueError, match="only the reference core runs it"):
        batch.found(Verification(HALF_STRICT))
