"""The bound for several drafts against the linear program that defines it, and rules against what they accept."""

from collections.abc import Callable
from itertools import permutations, product

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor

from kernels.contract import Draft
from kernels.methods import SiblingDraws
from kernels.reference import optimal_acceptance
from kernels.reference.optimal_acceptance import distinct_bound, independent_bound, top_bound
from kernels.reference.several_drafts import kseq_acceptance, recursive_acceptance, recursive_pair_acceptance
from kernels.reference.tree_bounds import tree_bounds
from tests.support.random_round import PLAIN, sampling_of

Law = dict[tuple[int, ...], float]
"""Of the n drafts of a position."""
NUM_ROWS, MAX_DRAFTS = 4, 3


def rows(vocab_size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Pairs of distributions, a peaked one and one with tokens without mass among them."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.rand(NUM_ROWS, vocab_size, generator=generator, dtype=torch.float64) ** 2
    draft = torch.rand(NUM_ROWS, vocab_size, generator=generator, dtype=torch.float64) ** 3
    target[1, 0], draft[1, 1] = 0.0, 0.0
    draft[2, 2] = 1e3
    return target / target.sum(1, keepdim=True), draft / draft.sum(1, keepdim=True)


def law_of_drafts(draft: list[float], num_drafts: int, is_distinct: bool) -> Law:
    """Where tokens run out before the drafts, those are all."""
    if not is_distinct:
        return {
            path: float(np.prod([draft[x] for x in path])) for path in product(range(len(draft)), repeat=num_drafts)
        }
    law, length = {}, min(num_drafts, sum(prob > 0 for prob in draft))
    for path in permutations(range(len(draft)), length):
        prob, left = 1.0, 1.0
        for token in path:
            prob, left = prob * draft[token] / left if left > 0 else 0.0, left - draft[token]
        law[path] = prob
    return law


def best_of_all_rules(target: list[float], law: Law) -> float:
    """The largest mass that a joint law of drafts and output can put on outputs that are among the drafts."""
    pairs = [(index, token) for index, path in enumerate(law) for token in set(path)]
    limits = np.zeros((len(law) + len(target), len(pairs)))
    for column, (index, token) in enumerate(pairs):
        limits[index, column] = limits[len(law) + token, column] = 1.0
    found = linprog(-np.ones(len(pairs)), A_ub=limits, b_ub=[*law.values(), *target], method="highs")
    assert found.success
    return -found.fun


def largest_error(bound: Callable[[Tensor, Tensor, int], Tensor], is_distinct: bool) -> float:
    """From the linear program, over all rows and up to three drafts of three to five tokens."""
    error = 0.0
    for vocab_size in (3, 4, 5):
        target, draft = rows(vocab_size, seed=vocab_size)
        found = bound(target, draft, MAX_DRAFTS)
        for row, number in product(range(NUM_ROWS), range(1, MAX_DRAFTS + 1)):
            law = law_of_drafts(draft[row].tolist(), number, is_distinct)
            error = max(error, abs(best_of_all_rules(target[row].tolist(), law) - float(found[row, number - 1])))
    return error


@pytest.mark.parametrize(
    ("bound", "is_distinct"), [(independent_bound, False), (distinct_bound, True)], ids=["independent", "distinct"]
)
def test_the_bound_is_the_best_of_all_rules(bound: Callable, is_distinct: bool):
    """It would catch an order by q alone, a minimum over fewer prefixes, and the other law of the drafts."""
    assert largest_error(bound, is_distinct) < 1e-8


def test_broken_bounds_are_found(monkeypatch: pytest.MonkeyPatch):
    assert largest_error(independent_bound, True) > 1e-3
    assert largest_error(distinct_bound, False) > 1e-3
    right = optimal_acceptance._prefixes

    def by_draft_alone(target: Tensor, draft: Tensor) -> object:
        order = draft.argsort(dim=1)
        found = right(torch.full_like(target, 1.0), draft.gather(1, order))
        return found._replace(target_within=target.gather(1, order).cumsum(1))

    monkeypatch.setattr(optimal_acceptance, "_prefixes", by_draft_alone)
    assert largest_error(independent_bound, False) > 1e-3
    assert largest_error(distinct_bound, True) > 1e-3


def test_one_draft_is_the_overlap_and_more_help():
    target, draft = rows(50, seed=1)
    for found in (independent_bound(target, draft, 8), distinct_bound(target, draft, 8)):
        torch.testing.assert_close(found[:, 0], torch.minimum(target, draft).sum(1), rtol=0, atol=1e-13)
        assert bool((found.diff(dim=1) >= -1e-12).all())
    assert bool((distinct_bound(target, draft, 8) >= independent_bound(target, draft, 8) - 1e-9).all())


@pytest.mark.parametrize("peak", [1.0, 1e4, 1e9], ids=["flat", "peaked", "one token has all but 1e-9"])
def test_the_race_agrees_with_the_closed_form_of_two(peak: float):
    """In a row of many blocks, where the second draft comes 1e9 times later than the first."""
    generator = torch.Generator().manual_seed(2)
    weights = torch.rand(2, 1003, generator=generator, dtype=torch.float64) ** 4
    weights[:, 5] *= peak * weights.sum(1)
    draft = weights / weights.sum(1, keepdim=True)
    target = draft * torch.rand(2, 1003, generator=generator, dtype=torch.float64)
    target /= target.sum(1, keepdim=True)
    prefixes = optimal_acceptance._prefixes(target, draft)
    race = optimal_acceptance._race_bound(prefixes, draft, 4)[:, 1]
    torch.testing.assert_close(race, optimal_acceptance._pair_bound(prefixes), rtol=0, atol=1e-9)


def test_the_best_tokens_reach_their_target_mass():
    target, draft = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).double(), torch.tensor([[2.0, -1.0, 5.0, 0.0]])
    torch.testing.assert_close(top_bound(target, draft, 3), torch.tensor([[0.3, 0.4, 0.8]]).double())


def accepted_recursively(target: list[float], draft: list[float], num_drafts: int, is_distinct: bool) -> float:
    """By definition: every sequence of drafts, one after another."""

    def accepts(path: tuple[int, ...]) -> float:
        left, law, passed, found = np.array(target), np.array(draft), 1.0, 0.0
        for token in path:
            rate = min(1.0, left[token] / law[token])
            found, passed = found + passed * rate, passed * (1 - rate)
            left = np.maximum(left - law, 0)
            left = left / left.sum() if left.sum() > 0 else left
            if is_distinct:
                law[token] = 0
                law = law / law.sum() if law.sum() > 0 else law
        return found

    law = law_of_drafts(draft, num_drafts, is_distinct)
    return sum(prob * accepts(path) for path, prob in law.items() if prob > 0)


def test_recursive_rejection_accepts_what_its_closed_form_says():
    target, draft = rows(4, seed=8)
    wanted = [
        [accepted_recursively(target[row].tolist(), draft[row].tolist(), number, False) for number in (1, 2, 3)]
        for row in range(NUM_ROWS)
    ]
    torch.testing.assert_close(
        recursive_acceptance(target, draft, 3), torch.tensor(wanted).double(), rtol=0, atol=1e-12
    )
    pairs = [accepted_recursively(target[row].tolist(), draft[row].tolist(), 2, True) for row in range(NUM_ROWS)]
    found = recursive_pair_acceptance(target, draft)
    torch.testing.assert_close(found, torch.tensor(pairs).double(), rtol=0, atol=1e-12)
    certain = torch.tensor([[0.0, 1.0]]).double()
    assert float(recursive_pair_acceptance(torch.tensor([[0.5, 0.5]]).double(), certain)) == 0.5


def test_kseq_solves_its_equation_and_stays_below_the_bound():
    """A rho that is too small accepts more than is lossless, and the residual would need negative mass."""
    target, draft = rows(40, seed=9)
    found, bound = kseq_acceptance(target, draft, 8), independent_bound(target, draft, 8)
    torch.testing.assert_close(found[:, 0], bound[:, 0], rtol=0, atol=1e-12)
    assert bool((found <= bound + 1e-12).all()) and bool((found.diff(dim=1) > -1e-12).all())
    # (1 - 1 / e) of the bound is reached at least (arXiv 2310.15141, theorem 2)
    assert bool((found >= (1 - np.exp(-1)) * bound).all())


RAGGED = (-1, 0, -1, 0, -1, 2, 1)
"""Three children of the context, two of its first, one of its second and one of that one's."""
WALKS = ((0, 1, 6), (2, 5), ())


@pytest.mark.parametrize("siblings", [*SiblingDraws, None], ids=["independent", "distinct", "one-hot"])
def test_the_nodes_of_a_tree_have_the_bound_of_their_children(siblings: SiblingDraws | None):
    """Would catch the row of another node, the children of another, and drafts that were drawn otherwise."""
    size = 5
    width, vocab = len(RAGGED), rows(size, 1)
    target = torch.stack([vocab[0][index % NUM_ROWS] for index in range(len(WALKS) * (width + 1))])
    cached = torch.stack([vocab[1][(3 * index) % NUM_ROWS] for index in range(len(WALKS) * width)])
    target, cached = target.view(len(WALKS), width + 1, size).roll(1, 2), cached.view(len(WALKS), width, size)
    token_ids = torch.tensor([[0, 3, 4, 4, 3, 0, 3]] * len(WALKS))
    draft = Draft(
        token_ids,
        torch.full((len(WALKS),), width),
        None if siblings is None else cached.log(),
        parents=torch.tensor([RAGGED] * len(WALKS)),
        siblings=siblings or SiblingDraws.distinct,
    )
    path = torch.tensor([[*walk, *(-1,) * (width - len(walk))] for walk in WALKS])
    found = tree_bounds(target.log().flatten(0, 1), draft, sampling_of(*[PLAIN] * len(WALKS)), path)
    for request, walk in enumerate(WALKS):
        for depth, node in enumerate((-1, *walk)):
            children = [place for place, parent in enumerate(RAGGED) if parent == node]
            here = target[request, node + 1].tolist()
            expected = sum(here[token] for token in {int(token_ids[request, place]) for place in children})
            if siblings is not None and children:
                row = cached[request, children[0]].tolist()
                expected = best_of_all_rules(here, law_of_drafts(row, len(children), siblings is SiblingDraws.distinct))
            assert found[request, depth] == pytest.approx(expected, abs=1e-9), (request, depth)
        assert not found[request, len(walk) + 1 :].any()
