"""Independent heads in the engine: the law of what comes out on a toy pair, of chains and trees."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from harness.config.tree import DynamicTree, branching
from harness.drafters.chain import DrafterShape
from harness.drafters.draft_tree import DraftTree
from harness.drafters.dynamic_tree import DynamicTreeShape
from harness.drafters.medusa_run import MedusaDrafter, MedusaTreeDrafter
from harness.models.cost import Cost
from kernels.contract import DraftSampling, SiblingDraws, VerificationMethod
from kernels.core import reference_core
from kernels.methods import TreeMethod
from tests.support.toy_markov import exact_law, fits, outputs, toy_engine, toy_requests, transitions

TARGET, DRAFT = transitions(3, seed=12), transitions(3, seed=19)
NUM_TOKENS, NUM_SLOTS = 4, 800


class ToyHeads:
    """Head k goes k + 1 steps ahead of the token whose state is read, by tables of its own."""

    config = SimpleNamespace(num_heads=3)
    num_parameters, hidden_size, vocab_size, draft_to_target = 0, 3, 3, None
    target = SimpleNamespace(device=torch.device("cpu"), dtype=torch.float32)

    def rows(self, hidden, number):
        tables = [torch.linalg.matrix_power(DRAFT, index + 2) for index in range(number)]
        return torch.stack([(hidden @ table).clamp_min(1e-9).log() for table in tables], dim=1)

    def round_cost(self, num_slots, number):
        return Cost()


def p_value(method, sampling, tree=None, core=None, graphs=False):
    shape = DrafterShape(NUM_SLOTS, 20, 3 if tree is None else tree.num_nodes, 3)
    if tree is None:
        drafter = MedusaDrafter(ToyHeads(), sampling, shape)
    else:
        drafter = MedusaTreeDrafter(ToyHeads(), sampling, shape, tree)
    sizes = {"num_speculative_tokens": 3, "max_new_tokens": NUM_TOKENS, "num_slots": NUM_SLOTS}
    engine = toy_engine(TARGET, DRAFT, method, sampling, drafter=drafter, tree=tree, core=core, graphs=graphs, **sizes)
    return fits(outputs(engine, toy_requests(8000)).values(), exact_law(TARGET, NUM_TOKENS))


@pytest.mark.parametrize("graphs", [False, True], ids=["operation by operation", "steps of fixed sizes"])
@pytest.mark.parametrize(
    ("method", "sampling"),
    [
        (VerificationMethod.probabilistic, DraftSampling.sampled),
        (VerificationMethod.block, DraftSampling.sampled),
        (VerificationMethod.coupled, DraftSampling.coupled),
    ],
    ids=lambda item: item.value,
)
def test_law_of_chains_is_the_targets(method, sampling, graphs):
    """Would catch the state of another token or slot, and rows that are verified in another order than drawn."""
    assert p_value(method, sampling, graphs=graphs) > 1e-6


@pytest.mark.parametrize(
    ("method", "tree", "sampling"),
    [
        (TreeMethod.recursive, DraftTree(branching(2, 2), SiblingDraws.distinct), DraftSampling.sampled),
        (TreeMethod.kseq, DraftTree(branching(2, 1, 1), SiblingDraws.independent), DraftSampling.sampled),
        (TreeMethod.traversal, DraftTree(branching(2, 2, 1), SiblingDraws.distinct), DraftSampling.sampled),
        (TreeMethod.recursive, DynamicTreeShape(DynamicTree(5, 3, 2)), DraftSampling.greedy),
    ],
    ids=["recursive", "kseq", "traversal", "dynamic"],
)
def test_law_of_trees_is_the_targets(method, tree, sampling):
    assert p_value(method, sampling, tree) > 1e-6


def test_the_same_statistic_rejects_rows_of_the_head_before():
    """Drafts drawn from head k and verified by head k - 1."""
    core = reference_core()

    def verify(target_logits, draft, *others, mask):
        if draft.logits is not None:
            shifted = torch.cat([draft.logits[:, :1], draft.logits[:, :-1]], dim=1)
            draft = replace(draft, logits=shifted, row_stats=None)
        return core.verify(target_logits, draft, *others, mask=mask)

    broken = replace(core, verify=verify)
    assert p_value(VerificationMethod.probabilistic, DraftSampling.sampled, core=broken) < 1e-6
