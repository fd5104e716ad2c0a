"""Trees through the kernels against the reference on the same streams: equal tokens, paths, counts and flags."""

from dataclasses import replace

import pytest
import torch

from harness.config.tree import Tree, branching
from kernels.chain.draft_stats import with_row_stats
from kernels.contract import NO_TOKEN, Draft, Sampling, SiblingDraws, VerificationResult
from kernels.launch.workspace import Workspace
from kernels.methods import TreeMethod, VerificationMethod
from tests.support.kernel_rounds import DEVICE, UNCUT, always, kernel_round, moved, streams_of
from tests.support.kernel_tree_rounds import TreeRound, assert_same, check_in_a_graph, checked, masked, tree_round
from tests.support.random_round import GREEDY, PLAIN, Setting, sampling_of

INDEPENDENT, DISTINCT = SiblingDraws
SHAPES: list[Tree | None] = [branching(3, 2), branching(4), (), None, branching(1, 2), (-1, 0, -1, 0, 2, 2, 5)]
SIBLINGS = pytest.mark.parametrize("siblings", SiblingDraws, ids=lambda siblings: siblings.value)
OF_ALL_SIBLINGS = [method for method in TreeMethod if DISTINCT in method.traits.siblings]
METHODS, METHODS_AND_SYNTHETIC = (
    pytest.mark.parametrize("method", methods, ids=lambda method: method.value)
    for methods in (OF_ALL_SIBLINGS, [*OF_ALL_SIBLINGS, VerificationMethod.synthetic])
)
CUT: list[Setting] = [(0.7, 0, 0.9, 0.0), GREEDY, (1.3, 30, 0.8, 0.02)]


@SIBLINGS
@pytest.mark.parametrize("one_hot", [False, True], ids=["cached", "one-hot"])
def test_ragged_trees(siblings: SiblingDraws, one_hot: bool):
    """Sampled beside greedy requests, a padded slot, packed rows. Would catch a walk with another's parents, a residual
    that is not that of all rejected siblings, and noise of another node."""
    lengths = set()
    for seed in range(3):
        batch = tree_round(UNCUT, SHAPES, 63, siblings, one_hot=one_hot, error=1.5, seed=seed)
        found = checked(batch)
        assert not found.invalid.any() and found.path[3].tolist() == [-1] * found.path.shape[1]
        lengths |= set(found.num_accepted.tolist())
    assert lengths >= {0, 1, 2}


@pytest.mark.parametrize(
    ("vocab_size", "dtype"),
    always((2051, torch.bfloat16), on_a_gpu=[(5000, torch.float32), (4096, torch.float16), (128_255, torch.bfloat16)]),
    ids=str,
)
@pytest.mark.parametrize("keeps_statistics", [False, True], ids=["none", "statistics"])
def test_rows_of_several_chunks(vocab_size: int, dtype: torch.dtype, keeps_statistics: bool):
    """Rows that begin anywhere; draft rows that are summed beside the target's, or were when they were drawn."""
    shapes: list[Tree | None] = [branching(3, 1), branching(2, 2)]
    batch = tree_round([PLAIN, (0.7, 0, 1.0, 0.0)], shapes, vocab_size, DISTINCT, dtype, error=1.2, padded=True, seed=5)
    if keeps_statistics:
        batch = replace(batch, draft=with_row_stats(batch.draft, batch.sampling, Workspace()))
    checked(batch)


@pytest.mark.parametrize("is_mixed", [False, True], ids=["cutting", "mixed"])
@pytest.mark.parametrize(
    "one_hot", always(False, on_a_gpu=[True]), ids=["cached", "one-hot"][: 1 + (DEVICE.type == "cuda")]
)
def test_rows_that_are_cut(is_mixed: bool, one_hot: bool):
    """Beside rows that are not: thresholds of all nodes, and masses of tokens above them alone."""
    shapes: list[Tree | None] = [branching(2, 1), (-1,), (-1, -1)]
    batch = tree_round(CUT, shapes, 40, DISTINCT, one_hot=one_hot, error=0.5, seed=2)
    checked(replace(batch, sampling=replace(batch.sampling, is_mixed=is_mixed)))


@SIBLINGS
def test_masked_rows(siblings: SiblingDraws):
    """A forbidden child is rejected, and no forbidden token drawn; the residual leaves out what the draft row was not
    allowed."""
    for seed in range(8, 14):
        checked(masked(tree_round(UNCUT, SHAPES, 63, siblings, seed=seed)))


def peaked_round(siblings: SiblingDraws, gap: float) -> TreeRound:
    """Two tokens have nearly all of the draft row, and the other children come from the rest, `gap` nats below."""
    count, vocab_size = 12, 200
    generator = torch.Generator().manual_seed(3)
    draft_row = torch.randn(vocab_size, generator=generator) - gap
    draft_row[7], draft_row[9] = 0.0, -0.4
    others = torch.randint(10, vocab_size, (count, 2), generator=generator)
    token_ids = torch.cat([torch.tensor([[7, 9]]).expand(count, -1), others], dim=1)
    target = 2 * torch.randn(count, 5, vocab_size, generator=generator)
    target[:, 0, [7, 9]] = -9.0
    draft = Draft(
        token_ids,
        torch.full((count,), 4),
        draft_row.expand(count, 4, -1).contiguous(),
        parents=torch.full((count, 4), -1),
        siblings=siblings,
    )
    plain = Sampling.same_for_all(count, 1.0, 0, 1.0, 0.0)
    return TreeRound(target.flatten(0, 1), draft, plain, streams_of(count, 4))


def checked_peaked(method: TreeMethod, gap: float) -> VerificationResult:
    batch = peaked_round(DISTINCT, gap)
    batch = TreeRound(*(moved(each, DEVICE) for each in (batch.rows, batch.draft, batch.sampling, batch.streams)))
    return checked(batch, method)


@METHODS
@pytest.mark.parametrize("gap", [22.0, 57.0])
def test_what_is_left_of_a_draft_row_is_summed_where_little_is(method: TreeMethod, gap: float):
    """The rest of 1e-9 or 2^-76 after two siblings: a difference of probabilities would be rounding alone."""
    found = checked_peaked(method, gap)
    accepted = found.path[:, 0].tolist()
    assert 2 in accepted and 3 in accepted and -1 in accepted and not found.invalid.any()


@METHODS
def test_a_sibling_beyond_what_its_row_has_left_is_never_accepted(method: TreeMethod):
    """Would catch a rest that is bounded from below: the law of the next sibling would be too small to reject it."""
    found = checked_peaked(method, 75.0)
    assert not (found.path[:, 0] > 1).any() and found.invalid[found.num_accepted == 0].all()


@pytest.mark.parametrize("method", TreeMethod, ids=lambda method: method.value)
def test_chains_are_those_of_the_method_for_chains(method: TreeMethod):
    batch = kernel_round(UNCUT, [3, 2, 3, -1, 3, 0], 63, seed=4)
    as_tree = TreeRound(batch.target_logits, batch.draft, batch.sampling, batch.streams)
    found = checked(as_tree, method)
    assert found.path.max() >= 0


@METHODS
def test_tokens_that_cannot_be_verified_are_left_out_and_flagged(method: TreeMethod):
    """An id outside the vocabulary, one that its row cannot have drawn, a distinct sibling that repeats another, a
    row without a distribution; places without a token are no fault, and repeat none."""
    count, vocab_size, no = 6, 8, NO_TOKEN
    token_ids = torch.tensor([[1, 99, 3], [1, 2, 3], [1, 1, 3], [1, no, no], [1, 3, 4], [1, 4, 5]])
    cache = torch.zeros(count, 3, vocab_size)
    cache[1, 0, 2] = -torch.inf
    target = torch.zeros(count, 4, vocab_size)
    # the target refuses tokens 1 and 3, so that all children are looked at
    target[:, 0, [1, 3]] = -torch.inf
    target[4, 0] = torch.nan
    target[5, 1:] = torch.nan
    plain = Sampling.same_for_all(count, 1.0, 0, 1.0, 0.0)
    draft = Draft(token_ids, torch.full((count,), 3), cache, parents=torch.full((count, 3), -1), siblings=DISTINCT)
    parts = (target.flatten(0, 1), draft, plain, streams_of(count, 2))
    found = checked(TreeRound(*(moved(each, DEVICE) for each in parts)), method)
    assert found.invalid.tolist()[:5] == [True, True, True, False, True]


@METHODS
def test_a_token_whose_parent_comes_after_it_is_never_reached(method: TreeMethod):
    """The verdict is that of a tree without it. Would catch a walk to a token that a later one leads to."""
    count, vocab_size = 8, 8
    target = torch.full((count * 4, vocab_size), -20.0)
    target[:, :3] = torch.tensor([0.0, 0.2, -0.1])
    plain = Sampling.same_for_all(count, 1.0, 0, 1.0, 0.0)

    def round_of(parents: Tree, token_ids: Tree) -> TreeRound:
        draft = Draft(
            torch.tensor([token_ids] * count),
            torch.full((count,), 3),
            parents=torch.tensor([parents] * count),
            siblings=INDEPENDENT,
        )
        return TreeRound(*(moved(each, DEVICE) for each in (target, draft, plain, streams_of(count, 6))))

    wrong, without = round_of((1, -1, 2), (0, 1, 2)), round_of((-1, -1, -1), (NO_TOKEN, 1, NO_TOKEN))
    with pytest.raises(ValueError, match="parent"):
        wrong.expected(method)
    found = wrong.found(method=method)
    assert found.path[:, 0].max() == 1 and found.path[:, 1:].max() == -1
    assert_same(found, without.expected(method))


@pytest.mark.gpu
@METHODS_AND_SYNTHETIC
@pytest.mark.parametrize("settings", [UNCUT, [*UNCUT[:3], *CUT]], ids=["uncut", "cutting"])
@pytest.mark.parametrize("siblings", [*SiblingDraws, None], ids=["independent", "distinct", "one-hot"])
def test_large_trees_in_a_graph(
    method: TreeMethod | VerificationMethod, settings: list[Setting], siblings: SiblingDraws | None
):
    """Twelve requests of 32 nodes over a vocabulary of 128,256, captured once and played for other streams."""
    shape, count = branching(4, 1, 2, 1, 1), 12
    batch = tree_round(
        (settings * 2)[:count], [shape] * count, 128_256, siblings or DISTINCT, torch.bfloat16, siblings is None, seed=1
    )
    check_in_a_graph(batch, method)


def test_no_request_cuts(monkeypatch: pytest.MonkeyPatch):
    """Trees whose sampling may cut but does not have the tokens of those that may not."""
    batch = tree_round([PLAIN, GREEDY], [branching(2, 1)] * 2, 33, DISTINCT, seed=6)
    cutting = replace(batch, sampling=replace(sampling_of(PLAIN, GREEDY), truncates=True))
    assert_same(replace(cutting, sampling=moved(cutting.sampling, DEVICE)).found(), batch.found())
