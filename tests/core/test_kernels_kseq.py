"""K-SEQ through the kernels against the reference on the same streams, and the discount that they find."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from harness.config.tree import Tree, branching
from kernels.chain.draft_stats import with_row_stats
from kernels.contract import NO_TOKEN, Draft, Sampling, SiblingDraws
from kernels.launch.workspace import Workspace
from kernels.methods import TreeMethod
from kernels.reference.several_drafts import kseq_ratio
from kernels.tree import rejection_walk
from tests.support.kernel_rounds import DEVICE, UNCUT, always, moved, streams_of
from tests.support.kernel_tree_rounds import TreeRound, check_in_a_graph, checked, masked, tree_round
from tests.support.random_round import GREEDY, PLAIN, Setting

INDEPENDENT, DISTINCT = SiblingDraws
KSEQ = TreeMethod.kseq
CUT: list[Setting] = [(0.7, 0, 0.9, 0.0), GREEDY, (1.3, 30, 0.8, 0.02)]
RAGGED: list[Tree | None] = [branching(3, 2), branching(4), (), None, branching(1, 2), (-1, 0, -1, 0, 2, 2, 5)]


@pytest.mark.parametrize("error", [0.3, 2.0], ids=["near", "far"])
def test_ragged_trees(error: float):
    """Sampled beside greedy requests, a padded slot, packed rows, nodes with one child and with several. Would catch
    the discount of another node or of another number of children, and a residual that ignores it."""
    lengths = set()
    for seed in range(2):
        batch = tree_round(UNCUT, RAGGED, 63, INDEPENDENT, error=error, seed=seed)
        found = checked(batch, KSEQ)
        assert not found.invalid.any() and found.path[3].tolist() == [-1] * found.path.shape[1]
        lengths |= set(found.num_accepted.tolist())
    assert lengths >= {0, 1, 2}


@pytest.mark.parametrize(
    ("vocab_size", "dtype"),
    always((2051, torch.bfloat16), on_a_gpu=[(5000, torch.float32), (128_255, torch.bfloat16)]),
    ids=str,
)
@pytest.mark.parametrize("keeps_statistics", [False, True], ids=["none", "statistics"])
def test_rows_of_several_chunks(vocab_size: int, dtype: torch.dtype, keeps_statistics: bool):
    """Rows that begin anywhere. Would catch a sum over the candidates that leaves out a chunk."""
    shapes: list[Tree | None] = [branching(3, 1), branching(2, 2)]
    batch = tree_round([PLAIN, (0.7, 0, 1.0, 0.0)], shapes, vocab_size, INDEPENDENT, dtype, error=1.2, seed=5)
    if keeps_statistics:
        batch = replace(batch, draft=with_row_stats(batch.draft, batch.sampling, Workspace()))
    checked(batch, KSEQ)


@pytest.mark.parametrize("is_mixed", [False, True], ids=["cutting", "mixed"])
def test_rows_that_are_cut(is_mixed: bool):
    """Beside rows that are not; would catch candidates that weigh tokens below a threshold."""
    shapes: list[Tree | None] = [branching(2, 1), (-1,), (-1, -1, -1)]
    for seed in range(2):
        batch = tree_round(CUT, shapes, 40, INDEPENDENT, error=0.5, seed=seed)
        checked(replace(batch, sampling=replace(batch.sampling, is_mixed=is_mixed)), KSEQ)


def test_masked_rows():
    """A forbidden child is rejected, no forbidden token drawn, and neither has a share in the discount."""
    batch = tree_round([PLAIN] * 3, [branching(2, 2), (-1, -1), (-1, 0)], 40, INDEPENDENT, seed=8)
    checked(masked(batch), KSEQ)


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


@pytest.mark.gpu
@pytest.mark.parametrize("settings", [UNCUT, [*UNCUT[:3], *CUT]], ids=["uncut", "cutting"])
def test_large_trees_in_a_graph(settings: list[Setting]):
    """Twelve requests of 32 nodes over a vocabulary of 128,256, captured once and played for other streams."""
    shape, count = branching(4, 1, 2, 1, 1), 12
    batch = tree_round((settings * 2)[:count], [shape] * count, 128_256, INDEPENDENT, torch.bfloat16, seed=1)
    check_in_a_graph(batch, KSEQ)
