"""Synthetic acceptance of trees through the kernels: tokens, paths, counts and flags of the reference."""

from dataclasses import replace

import pytest
import torch

from harness.config.tree import Tree, branching
from kernels.contract import NO_TOKEN, Draft, Sampling, SiblingDraws, TokenMask, Verification, VerificationMethod
from kernels.verify import verify
from tests.support.kernel_rounds import DEVICE, UNCUT, moved, random_words, streams_of
from tests.support.kernel_tree_rounds import TreeRound, assert_same, checked, tree_round
from tests.support.random_round import GREEDY, Setting

SYNTHETIC = VerificationMethod.synthetic
SHAPES: list[Tree | None] = [branching(3, 2), branching(4), (), None, branching(1, 1, 1, 1, 1), (-1, 0, -1, 0, 2, 2, 5)]
CUT: list[Setting] = [(0.7, 0, 0.9, 0.0), GREEDY, (1.3, 30, 0.8, 0.02)]
DISTINCT = SiblingDraws.distinct


@pytest.mark.parametrize("padded", [False, True], ids=["packed", "padded"])
def test_ragged_trees(padded: bool):
    """Beside a padded slot and greedy requests, deeper and wider than there are rates. Would catch a walk by another's
    parents or uniform number, a child of another rank, and a token from another row than the last node's."""
    lengths, ranks = set(), set()
    for seed in range(5):
        batch = tree_round(UNCUT, SHAPES, 63, DISTINCT, padded=padded, seed=seed)
        found = checked(batch, SYNTHETIC)
        assert not found.invalid.any() and found.path[3].tolist() == [-1] * found.path.shape[1]
        lengths |= set(found.num_accepted.tolist())
        ranks |= set(found.path[:, 0].tolist())
    assert lengths >= {0, 1, 2} and ranks >= {-1, 0, 1}


@pytest.mark.parametrize("is_mixed", [False, True], ids=["cutting", "mixed"])
def test_rows_that_are_cut(is_mixed: bool):
    batch = tree_round([*UNCUT[:3], *CUT], SHAPES, 2051, DISTINCT, torch.bfloat16, seed=2)
    checked(replace(batch, sampling=replace(batch.sampling, is_mixed=is_mixed)), SYNTHETIC)


def test_masked_rows():
    """Would catch the mask of another row than the one that is drawn from."""
    batch = tree_round(UNCUT, SHAPES, 63, DISTINCT, seed=8)
    words = random_words(8, 63, torch.Generator().manual_seed(1)).to(DEVICE)
    rows = (2 + torch.arange(len(batch.rows), device=DEVICE) % 7) % 8
    checked(replace(batch, mask=TokenMask(words, torch.where(rows < 2, -1, rows))), SYNTHETIC)


def test_what_cannot_be_emitted_is_flagged_and_a_place_without_a_token_is_not():
    """An id outside the vocabulary is not accepted, whatever its rate; a sibling behind a place without a token moves
    up; rows without a distribution count only where they are drawn from."""
    token_ids = torch.tensor([[99, 1], [NO_TOKEN, 1], [2, 1], [2, 1]])
    target = torch.zeros(4, 3, 8)
    target[2, 0], target[3, 1] = torch.nan, torch.nan
    draft = Draft(token_ids, torch.full((4,), 2), parents=torch.full((4, 2), -1))
    plain = Sampling.same_for_all(4, 1.0, 0, 1.0, 0.0)
    batch = TreeRound(*(moved(each, DEVICE) for each in (target.flatten(0, 1), draft, plain, streams_of(4, 2))))
    inputs = batch.rows, batch.draft, batch.sampling
    first = Verification(SYNTHETIC, tree_rates=((1.0,),))
    found = verify(*inputs, first, batch.streams)
    assert found.invalid.tolist() == [True, False, False, True]
    assert found.path.tolist() == [[-1, -1], [1, -1], [0, -1], [0, -1]]
    checked(batch, SYNTHETIC)


def test_a_number_of_draft_tokens_below_0_is_a_padded_slot():
    """Would catch a slot that emits a token, as one does whose packed rows do not add up."""
    batch = tree_round(UNCUT[:3], [branching(2, 1)] * 3, 63, DISTINCT, padded=True)
    batch.draft.num_draft_tokens[1] = -1
    expected = batch.expected(SYNTHETIC)
    for count in (-2, -9):
        batch.draft.num_draft_tokens[1] = count
        assert_same(batch.found(method=SYNTHETIC), expected)
