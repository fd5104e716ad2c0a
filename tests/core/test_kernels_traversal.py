"""Traversal verification through the kernels against the reference on the same streams."""

from dataclasses import replace

import pytest
import torch

from harness.config.tree import Tree, branching
from kernels.contract import Draft, Sampling, SiblingDraws
from kernels.methods import TreeMethod
from tests.support.kernel_rounds import DEVICE, UNCUT, always, moved, streams_of
from tests.support.kernel_tree_rounds import TreeRound, checked, masked, tree_round
from tests.support.random_round import GREEDY, PLAIN, Setting

INDEPENDENT, DISTINCT = SiblingDraws
TRAVERSAL = TreeMethod.traversal
CUT: list[Setting] = [(0.7, 0, 0.9, 0.0), GREEDY, (1.3, 30, 0.8, 0.02)]
RAGGED: list[Tree | None] = [branching(3, 2), branching(4), (), None, branching(1, 2), (-1, 0, -1, 0, 2, 2, 5)]


@pytest.mark.parametrize(
    ("siblings", "one_hot"),
    [(INDEPENDENT, False), (DISTINCT, False), (INDEPENDENT, True)],
    ids=["independent", "distinct", "one-hot"],
)
def test_ragged_trees(siblings: SiblingDraws, one_hot: bool):
    """Sampled beside greedy requests, a padded slot, packed rows; inner nodes that fail after their children. Would
    catch the chance of another node, a stack that forgets what is above, and a token that is deleted twice."""
    lengths = set()
    for seed in range(2):
        batch = tree_round(UNCUT, RAGGED, 15, siblings, one_hot=one_hot, error=2.0, seed=seed)
        found = checked(batch, TRAVERSAL)
        assert not found.invalid.any() and found.path[3].tolist() == [-1] * found.path.shape[1]
        lengths |= set(found.num_accepted.tolist())
    assert lengths >= {0, 1, 2}


def test_a_certain_sibling_that_repeats_another_has_no_chance():
    """Would catch one that is tested with the probability that its twin has used up."""
    count = 12
    target = torch.randn(count, 4, 6, generator=torch.Generator().manual_seed(2))
    draft = Draft(
        torch.tensor([[3, 3, 2]]).repeat(count, 1),
        torch.full((count,), 3),
        parents=torch.full((count, 3), -1),
        siblings=INDEPENDENT,
    )
    plain = Sampling.same_for_all(count, 1.0, 0, 1.0, 0.0)
    parts = (target.flatten(0, 1), draft, plain, streams_of(count, 9))
    found = checked(TreeRound(*(moved(each, DEVICE) for each in parts)), TRAVERSAL)
    assert {0, 2} <= set(found.path[:, 0].tolist()) and 1 not in found.path[:, 0].tolist()


@pytest.mark.parametrize(
    ("vocab_size", "dtype"),
    always((2051, torch.bfloat16), on_a_gpu=[(5000, torch.float32), (128_255, torch.bfloat16)]),
    ids=str,
)
def test_rows_of_several_chunks(vocab_size: int, dtype: torch.dtype):
    """Rows that begin anywhere, and draft rows whose statistics are found first."""
    batch = tree_round([(0.7, 0, 1.0, 0.0)], [branching(2, 1)], vocab_size, DISTINCT, dtype, error=1.2, seed=5)
    checked(batch, TRAVERSAL)


@pytest.mark.parametrize("one_hot", [False, True], ids=["cached", "one-hot"])
def test_rows_that_are_cut(one_hot: bool):
    """Beside rows that are not, in launches of their own."""
    shapes: list[Tree | None] = [branching(2, 1), (-1,), (-1, -1)]
    batch = tree_round(CUT, shapes, 40, DISTINCT, one_hot=one_hot, error=0.5, seed=2)
    checked(replace(batch, sampling=replace(batch.sampling, is_mixed=True)), TRAVERSAL)


def test_masked_rows():
    """A forbidden child is rejected, and no forbidden token drawn."""
    batch = tree_round([PLAIN] * 3, [branching(2, 2), (-1, -1), (-1, 0)], 40, DISTINCT, seed=8)
    checked(masked(batch), TRAVERSAL)
