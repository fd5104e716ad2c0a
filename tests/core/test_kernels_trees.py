"""Trees through the kernels against the reference on the same streams: equal tokens, paths, counts and flags.

Every method for trees passes by its rows in the tables here; what only one of them has stands behind.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.config.tree import Tree, branching
from kernels.chain.draft_stats import with_row_stats
from kernels.contract import NO_TOKEN, Draft, Sampling, SiblingDraws, TokenMask, Verification, VerificationResult
from kernels.launch.workspace import Workspace
from kernels.methods import TreeMethod, VerificationMethod
from kernels.reference.several_drafts import kseq_ratio
from kernels.tree import rejection_walk
from kernels.verify import verify
from tests.support.kernel_rounds import DEVICE, UNCUT, always, kernel_round, moved, random_words, streams_of
from tests.support.kernel_tree_rounds import (
    AnyMethod,
    TreeRound,
    assert_same,
    check_in_a_graph,
    checked,
    masked,
    tree_round,
)
from tests.support.random_round import GREEDY, PLAIN, Setting, sampling_of

INDEPENDENT, DISTINCT = SiblingDraws
RECURSIVE, KSEQ, TRAVERSAL = TreeMethod.recursive, TreeMethod.kseq, TreeMethod.traversal
SYNTHETIC = VerificationMethod.synthetic
SHAPES: list[Tree | None] = [branching(3, 2), branching(4), (), None, branching(1, 2), (-1, 0, -1, 0, 2, 2, 5)]
DEEP = [*SHAPES[:4], branching(1, 1, 1, 1, 1), SHAPES[5]]
"""Deeper and wider than there are rates of synthetic acceptance."""
OF_ALL_SIBLINGS = [method for method in TreeMethod if DISTINCT in method.traits.siblings]
METHODS = pytest.mark.parametrize("method", OF_ALL_SIBLINGS, ids=lambda method: method.value)
CUT: list[Setting] = [(0.7, 0, 0.9, 0.0), GREEDY, (1.3, 30, 0.8, 0.02)]
OTHER_ROWS = [(5000, torch.float32), (4096, torch.float16), (128_255, torch.bfloat16)]

RAGGED: dict[str, tuple[AnyMethod, int, dict[str, Any]]] = {
    **{
        f"recursive, {siblings.value}, {'one-hot' if one_hot else 'cached'}": (
            RECURSIVE, 3, {"siblings": siblings, "one_hot": one_hot, "error": 1.5})
        for siblings in SiblingDraws for one_hot in (False, True)
    },
    "kseq, near": (KSEQ, 2, {"siblings": INDEPENDENT, "error": 0.3}),
    "kseq, far": (KSEQ, 2, {"siblings": INDEPENDENT, "error": 2.0}),
    "traversal, independent": (TRAVERSAL, 2, {"siblings": INDEPENDENT, "vocab_size": 15, "error": 2.0}),
    "traversal, distinct": (TRAVERSAL, 2, {"siblings": DISTINCT, "vocab_size": 15, "error": 2.0}),
    "traversal, one-hot": (TRAVERSAL, 2, {"siblings": INDEPENDENT, "vocab_size": 15, "error": 2.0, "one_hot": True}),
    "synthetic, packed": (SYNTHETIC, 5, {"shapes": DEEP, "siblings": DISTINCT}),
    "synthetic, padded": (SYNTHETIC, 5, {"shapes": DEEP, "siblings": DISTINCT, "padded": True}),
}  # fmt: skip
"""Method, number of rounds, and how they are drawn."""


@pytest.mark.parametrize(("method", "num_rounds", "given"), RAGGED.values(), ids=RAGGED)
def test_ragged_trees(method: AnyMethod, num_rounds: int, given: dict[str, Any]):
    """Sampled beside greedy requests, a padded slot, packed rows, nodes with one child and with several. Would catch a
    walk with another's parents, a residual that is not that of all rejected siblings, noise, chance or discount of
    another node, and a token that is deleted twice."""
    lengths, ranks = set(), set()
    for seed in range(num_rounds):
        found = checked(tree_round(UNCUT, **{"shapes": SHAPES, "vocab_size": 63, "seed": seed} | given), method)
        assert not found.invalid.any() and found.path[3].tolist() == [-1] * found.path.shape[1]
        lengths |= set(found.num_accepted.tolist())
        ranks |= set(found.path[:, 0].tolist())
    assert lengths >= {0, 1, 2} and (method is not SYNTHETIC or ranks >= {-1, 0, 1})


@pytest.mark.parametrize(("vocab_size", "dtype"), always((2051, torch.bfloat16), on_a_gpu=OTHER_ROWS), ids=str)
@pytest.mark.parametrize("keeps_statistics", [False, True], ids=["none", "statistics"])
@pytest.mark.parametrize("method", TreeMethod, ids=lambda method: method.value)
def test_rows_of_several_chunks(method: TreeMethod, vocab_size: int, dtype: torch.dtype, keeps_statistics: bool):
    """Rows that begin anywhere; draft rows that are summed beside the target's, or were when they were drawn. Would
    catch a sum over the candidates that leaves out a chunk."""
    siblings = INDEPENDENT if method is KSEQ else DISTINCT
    shapes: list[Tree | None] = [branching(2, 1)] if method is TRAVERSAL else [branching(3, 1), branching(2, 2)]
    settings = [(0.7, 0, 1.0, 0.0), PLAIN][: len(shapes)]
    padded = method is RECURSIVE
    batch = tree_round(settings, shapes, vocab_size, siblings, dtype, error=1.2, padded=padded, seed=5)
    if keeps_statistics:
        batch = replace(batch, draft=with_row_stats(batch.draft, batch.sampling, Workspace()))
    checked(batch, method)


@pytest.mark.parametrize("is_mixed", [False, True], ids=["cutting", "mixed"])
@pytest.mark.parametrize(
    ("method", "one_hot"),
    always((RECURSIVE, False), (KSEQ, False), (TRAVERSAL, False), (TRAVERSAL, True), on_a_gpu=[(RECURSIVE, True)]),
    ids=lambda item: item.value if isinstance(item, TreeMethod) else "one-hot" if item else "cached",
)
def test_rows_that_are_cut(method: TreeMethod, one_hot: bool, is_mixed: bool):
    """Beside rows that are not: thresholds of all nodes, masses of tokens above them alone, and candidates that weigh
    no token below one."""
    shapes: list[Tree | None] = [branching(2, 1), (-1,), (-1, -1, -1) if method is KSEQ else (-1, -1)]
    siblings = INDEPENDENT if method is KSEQ else DISTINCT
    batch = tree_round(CUT, shapes, 40, siblings, one_hot=one_hot, error=0.5, seed=2)
    checked(replace(batch, sampling=replace(batch.sampling, is_mixed=is_mixed)), method)


@pytest.mark.parametrize("is_mixed", [False, True], ids=["cutting", "mixed"])
def test_rows_that_are_cut_under_synthetic_acceptance(is_mixed: bool):
    batch = tree_round([*UNCUT[:3], *CUT], DEEP, 2051, DISTINCT, torch.bfloat16, seed=2)
    checked(replace(batch, sampling=replace(batch.sampling, is_mixed=is_mixed)), SYNTHETIC)


@pytest.mark.parametrize("siblings", SiblingDraws, ids=lambda siblings: siblings.value)
def test_masked_rows(siblings: SiblingDraws):
    """A forbidden child is rejected, and no forbidden token drawn; the residual leaves out what the draft row was not
    allowed, and neither has a share in the discount."""
    for seed in range(8, 14):
        checked(masked(tree_round(UNCUT, SHAPES, 63, siblings, seed=seed)))
    method = KSEQ if siblings is INDEPENDENT else TRAVERSAL
    checked(masked(tree_round([PLAIN] * 3, [branching(2, 2), (-1, -1), (-1, 0)], 40, siblings, seed=8)), method)


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
@pytest.mark.parametrize("settings", [UNCUT, [*UNCUT[:3], *CUT]], ids=["uncut", "cutting"])
@pytest.mark.parametrize(
    ("method", "siblings"),
    [
        *((method, siblings) for method in [*OF_ALL_SIBLINGS, SYNTHETIC] for siblings in (*SiblingDraws, None)),
        (KSEQ, INDEPENDENT),
    ],
    ids=lambda item: "one-hot" if item is None else item.value,
)
def test_large_trees_in_a_graph(method: AnyMethod, settings: list[Setting], siblings: SiblingDraws | None):
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


def test_tokens_that_cannot_be_verified_have_no_share_in_the_discount():
    """An id outside the vocabulary, one that its row cannot have drawn, a target row without a distribution, a place
    without a token. Would catch a number of children that counts them."""
    count, vocab_size, generator = 24, 8, torch.Generator().manual_seed(6)
    token_ids = torch.tensor([[1, 99, 1], [1, 2, 3], [1, 3, 3], [1, NO_TOKEN, 4]]).repeat(6, 1)
    cache = torch.randn(count, 1, vocab_size, generator=generator).repeat(1, 3, 1)
    cache[1::4, :, 2] = -torch.inf
    target = torch.randn(count, 4, vocab_size, generator=generator)
    target[2::4, 0] = torch.nan
    draft = Draft(token_ids, torch.full((count,), 3), cache, parents=torch.full((count, 3), -1), siblings=INDEPENDENT)
    plain = Sampling.same_for_all(count, 1.0, 0, 1.0, 0.0)
    parts = (target.flatten(0, 1), draft, plain, streams_of(count, 2))
    found = checked(TreeRound(*(moved(each, DEVICE) for each in parts)), KSEQ)
    assert found.invalid[2::4].all() and not found.invalid[3::4].any()
    assert {-1, 0, 2} <= set(found.path[:, 0].tolist())


def hard_rows(size: int) -> tuple[Tensor, Tensor]:
    """[8, V] target and draft logits whose discount is near either end, or where M is tiny or 0 or has few kinks.

    The target refuses token 0, which the drafter knows.
    """
    generator = torch.Generator().manual_seed(4)
    target = 3 * torch.randn(8, size, generator=generator)
    noise = torch.randn(8, size, generator=generator)
    draft = target + torch.tensor([0.0, 1e-3, 0.05, 0.3, 1.5, 5.0, 0.0, 0.0])[:, None] * noise
    # one token apart; almost nothing in common
    draft[6, 1] += 1e-3
    draft[7] = draft[7].where(torch.arange(size) < size // 2, draft[7] - 30)
    target[7] = target[7].where(torch.arange(size) >= size // 2, target[7] - 30)
    draft[:, 0] = draft.amax(dim=1) - 12
    target[:, 0] = -torch.inf
    return target, draft


@pytest.fixture
def discounts(monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """c of each request's rows as they were looked at last, which is where a rejection has left it."""
    found: dict[int, float] = {}
    open_node = rejection_walk.open_node

    def opening(*arguments):
        # Triton's interpreter calls it with scalars that hold numpy arrays
        request, factor = (float(arguments[place].handle.data.item()) for place in (4, 8))
        found[int(request)] = factor
        return open_node(*arguments)

    monkeypatch.setattr(rejection_walk, "open_node", opening)
    return found


@pytest.mark.skipif(DEVICE.type == "cuda", reason="looks into Triton's interpreter")
@pytest.mark.parametrize(("num_children", "size"), [(2, 5), (9, 40), (3, 2600)], ids=str)
def test_the_discount_is_the_root(num_children: int, size: int, discounts: dict[int, float]):
    """To 1e-6, over rows of one chunk and two. All children are token 0, which the target refuses, so that every walk
    ends with the discount. Would catch a bound that loses the root, and too few steps."""
    target, draft_rows = hard_rows(size)
    count = len(target)
    draft = Draft(
        torch.zeros(count, num_children, dtype=torch.int64),
        torch.full((count,), num_children),
        draft_rows[:, None].repeat(1, num_children, 1),
        parents=torch.full((count, num_children), -1),
        siblings=INDEPENDENT,
    )
    rows = target.repeat_interleave(num_children + 1, 0)
    plain = Sampling.same_for_all(count, 1.0, 0, 1.0, 0.0)
    batch = TreeRound(*(moved(each, DEVICE) for each in (rows, draft, plain, streams_of(count, 7))))
    found = batch.found(method=KSEQ)
    assert not found.num_accepted.any() and not found.invalid.any()
    rho = torch.tensor([discounts[request] for request in range(count)], dtype=torch.float64)
    expected, _ = kseq_ratio(
        target.double().softmax(dim=1), draft_rows.double().softmax(dim=1), torch.full((count,), num_children)
    )
    torch.testing.assert_close(rho, expected, rtol=1e-6, atol=0)
    assert expected.min() < 1.01 and expected.max() > 0.99 * num_children


@pytest.mark.parametrize(("siblings", "one_hot"), [(DISTINCT, False), (INDEPENDENT, True)], ids=["distinct", "one-hot"])
def test_other_siblings_are_refused_as_by_the_reference(siblings: SiblingDraws, one_hot: bool):
    batch = tree_round([PLAIN], [branching(2)], 63, siblings, one_hot=one_hot)
    for verdict in (batch.expected, batch.found):
        with pytest.raises(ValueError, match="kseq verifies siblings that are independent draws of cached logits"):
            verdict(method=KSEQ)


def test_masked_rows_under_synthetic_acceptance():
    """Would catch the mask of another row than the one that is drawn from."""
    batch = tree_round(UNCUT, DEEP, 63, DISTINCT, seed=8)
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
