"""Synthetic acceptance of trees in the reference: the law of the path, what chains accept, what is refused."""

from math import log

import pytest
import torch

from harness.config.tree import Tree, branching, depths_of
from kernels import custom_ops
from kernels.contract import Draft, Sampling, Streams, Verification, VerificationMethod
from kernels.methods import TreeMethod
from kernels.random.streams import uniform
from kernels.reference import synthetic_trees
from kernels.reference.tree_shape import chain_parents
from kernels.reference.verify import verify

SYNTHETIC = VerificationMethod.synthetic
RATES = ((0.5, 0.2, 0.1), (0.3, 0.6), (0.7,))
COUNT = 100_000
FALSE_ALARM = 1e-6


def streams_of(count: int) -> Streams:
    seeds = torch.arange(count)
    return Streams(seeds * 7919, seeds % 50, seeds % 7)


def paths_of(shape: Tree, rates: tuple[tuple[float, ...], ...] = RATES) -> torch.Tensor:
    """[COUNT, K] accepted paths of one shape."""
    draft = Draft(
        torch.zeros(COUNT, len(shape), dtype=torch.long),
        torch.full((COUNT,), len(shape)),
        parents=torch.tensor(shape).expand(COUNT, -1),
    )
    plain = Sampling.same_for_all(COUNT, 1.0, 0, 1.0, 0.0)
    rule = Verification(SYNTHETIC, tree_rates=rates)
    found = verify(torch.zeros(COUNT * (len(shape) + 1), 2), draft, plain, rule, streams_of(COUNT))
    assert found.path is not None and not found.invalid.any()
    return found.path


def nodes_with_wrong_rates(shape: Tree) -> list[int]:
    """The draft tokens that are accepted more or less often, among the walks that came to their parent, than their rate
    and Hoeffding's bound at FALSE_ALARM over all of them allow."""
    paths, levels = paths_of(shape), depths_of(shape)
    wrong = []
    for node, (parent, depth) in enumerate(zip(shape, levels, strict=True)):
        rank = sum(other == parent for other in shape[:node])
        rates = RATES[depth - 1] if depth <= len(RATES) else ()
        came = torch.ones(COUNT, dtype=torch.bool) if parent < 0 else paths[:, depth - 2] == parent
        share = float((paths[came, depth - 1] == node).double().mean())
        bound = (log(2 * len(shape) / FALSE_ALARM) / (2 * max(1, int(came.sum())))) ** 0.5
        # NaN where no walk came
        wrong += [node] if abs(share - (rates[rank] if rank < len(rates) else 0.0)) > bound else []
    return wrong


@pytest.mark.parametrize("shape", [branching(2, 2, 1), branching(4, 1), (-1, 0, -1, 0, 2, 3, 5, -1)], ids=str)
def test_each_child_is_accepted_at_its_rate(shape: Tree):
    """Of nodes with more children than rates, and fewer; deeper than there are rates. Would catch rates that are not
    summed up over siblings, the rate of another depth, and a missing child whose rate goes to its siblings."""
    assert nodes_with_wrong_rates(shape) == []


def test_the_law_of_a_broken_walk_is_found_wrong(monkeypatch: pytest.MonkeyPatch):
    """Depths that share one number: what was accepted above decides what is accepted below."""

    def shared(seeds: torch.Tensor, purpose: int, positions: torch.Tensor, rounds: torch.Tensor) -> torch.Tensor:
        return uniform(seeds, purpose, torch.zeros_like(positions), rounds)

    monkeypatch.setattr(synthetic_trees, "uniform", shared)
    assert nodes_with_wrong_rates(branching(2, 2, 1))


def test_with_one_child_a_node_it_accepts_what_it_accepts_of_a_chain():
    """Request by request. Would catch other random numbers than those of a chain, and unconditional rates."""
    count, width, rates = 2000, 4, (0.8, 0.4, 0.3, 0.1)
    draft = Draft(torch.ones(count, width, dtype=torch.long), torch.arange(count) % (width + 1))
    plain, rows = Sampling.same_for_all(count, 1.0, 0, 1.0, 0.0), torch.zeros(count * (width + 1), 3)
    streams = streams_of(count)
    of_chain = verify(rows, draft, plain, Verification(SYNTHETIC, rates=rates), streams)
    conditional = tuple((rate / before,) for before, rate in zip((1.0, *rates), rates, strict=False))
    tree = Draft(draft.token_ids, draft.num_draft_tokens, parents=chain_parents(count, width))
    found = verify(rows, tree, plain, Verification(SYNTHETIC, tree_rates=conditional), streams)
    assert torch.equal(found.num_accepted, of_chain.num_accepted) and len(found.num_accepted.unique()) == 5


@pytest.mark.parametrize(
    "rates", [((0.7, 0.4),), ((0.5,), (-0.1, 0.2)), ((1.1,),), ((0.5,), ())], ids=["sum", "negative", "large", "none"]
)
def test_rates_that_are_no_probabilities_are_refused(rates: tuple[tuple[float, ...], ...]):
    with pytest.raises(ValueError, match="rates in \\[0, 1\\] of a node's children whose sum is at most 1, found"):
        Verification(SYNTHETIC, tree_rates=rates)


def test_rates_of_the_other_shape_of_drafts_are_refused():
    """A tree with rates of chains, a chain with rates of trees, and trees in a custom operation, which has no place for
    rates of trees."""
    plain, streams = Sampling.same_for_all(1, 1.0, 0, 1.0, 0.0), streams_of(1)
    chain = Draft(torch.zeros(1, 2, dtype=torch.long), torch.tensor([2]))
    tree = Draft(chain.token_ids, chain.num_draft_tokens, parents=torch.tensor([[-1, -1]]))
    of_chains = Verification(SYNTHETIC, rates=(0.5, 0.2))
    of_trees = Verification(SYNTHETIC, tree_rates=RATES)
    with pytest.raises(ValueError, match="tree_rates must have the rates of trees"):
        verify(torch.zeros(3, 2), tree, plain, of_chains, streams)
    with pytest.raises(ValueError, match="rates must cover all 2 positions"):
        verify(torch.zeros(3, 2), chain, plain, of_trees, streams)
    with pytest.raises(ValueError, match="expected None, a chain"):
        custom_ops.verify(torch.zeros(3, 2), tree, plain, of_trees, streams)
    with pytest.raises(ValueError, match="expected None, a chain"):
        verify(torch.zeros(3, 2), tree, plain, Verification(VerificationMethod.block), streams)
    none = Verification(TreeMethod.recursive)
    assert verify(torch.zeros(3, 2), tree, plain, none, streams).path is not None
