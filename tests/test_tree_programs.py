"""Programs that share the rows of a request, and meet: the tokens are those of one program."""

import pytest
import torch

from harness.settings.tree import branching
from kernels import tree_walk
from kernels.contract import SiblingDraws
from kernels.methods import TreeMethod
from kernels.workspace import Workspace
from tests.kernel_rounds import DEVICE
from tests.kernel_tree_rounds import assert_same, tree_round
from tests.programs_at_once import AtOnce
from tests.random_round import GREEDY, PLAIN

INDEPENDENT, DISTINCT = SiblingDraws
KERNELS = "_rejection_walk_kernel", "_traversal_walk_kernel"


@pytest.fixture
def shared_by(monkeypatch: pytest.MonkeyPatch):
    """Sets the number of programs of a request."""
    if DEVICE.type != "cuda":
        for name in KERNELS:
            monkeypatch.setattr(tree_walk, name, AtOnce(getattr(tree_walk, name)))

    # a group of chunks for each chunk
    monkeypatch.setattr(tree_walk, "PARTS", 1)

    def set_number(number: int) -> None:
        monkeypatch.setattr(tree_walk, "programs_of_request", lambda *_: number)

    return set_number


@pytest.mark.parametrize(
    ("method", "siblings", "one_hot"),
    [
        (TreeMethod.recursive, DISTINCT, False),
        (TreeMethod.recursive, INDEPENDENT, True),
        (TreeMethod.kseq, INDEPENDENT, False),
        (TreeMethod.traversal, DISTINCT, False),
    ],
    ids=["recursive", "recursive one-hot", "kseq", "traversal"],
)
def test_any_number_of_programs_finds_the_same(method, siblings, one_hot, shared_by):
    """Over several rounds in one workspace. Would catch a chunk that no program reads, or that one overwrites before
    all have read it, programs that come to different steps, and counters that are left for the next launch."""
    workspace, lengths = Workspace(), set()
    shapes = [branching(2, 2), (), None, (-1, 0, -1, 0, 2)]
    for seed in range(2):
        settings = [PLAIN, PLAIN, PLAIN, PLAIN if seed else GREEDY]
        batch = tree_round(settings, shapes, 2051, siblings, torch.bfloat16, one_hot, error=1.2, seed=seed)
        shared_by(3)
        found = batch.found(workspace, method)
        assert workspace.busy_counters() == []
        assert_same(found, batch.expected(method))
        lengths |= set(found.num_accepted.tolist())
    assert len(lengths) > 1
