"""Every method emits the law that it is documented with, by exact enumeration; wrong versions of block do not."""

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor

import kernels.random.streams as streams_module
from kernels.contract import Streams, Verification
from kernels.methods.block import log_prefix_ratios
from kernels.reference.acceptance import acceptance_terms, expected_accepted
from kernels.reference.choose import choose
from kernels.reference.odds import Odds, up_to_first_failure
from kernels.reference.proposal import Proposal
from kernels.reference.truncation import sampling_rows
from kernels.reference.verify import verify
from tests.support.emitted_laws import (
    EXACT,
    LOSSLESS,
    Method,
    Tree,
    acceptance_odds,
    count_accepted,
    emission_weights,
    emitted_law,
    law_of_method,
    pair_tree,
    plain_sampling,
    random_tree,
    total_variation,
)

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("method", LOSSLESS, ids=lambda method: method.value)
@pytest.mark.parametrize("num_draft_tokens", [1, 2, 3])
def test_lossless_method_with_sampled_drafts(method: Method, num_draft_tokens: int):
    tree = random_tree(seed=num_draft_tokens, num_draft_tokens=num_draft_tokens)
    assert total_variation(tree, law_of_method(tree, Verification(method))) < EXACT


@pytest.mark.parametrize("method", LOSSLESS, ids=lambda method: method.value)
def test_lossless_method_with_proposals_taken_as_certain(method: Method):
    """One-hot verification is lossless for any tokens, however they were found."""
    tree = random_tree(seed=11, num_draft_tokens=2)
    assert total_variation(tree, law_of_method(tree, Verification(method), one_hot=True)) < EXACT


@pytest.mark.parametrize("method", LOSSLESS, ids=lambda method: method.value)
@pytest.mark.parametrize("setting", [{"temperature": 0.5}, {"top_k": 2}, {"temperature": 0.0}], ids=str)
def test_lossless_method_with_processed_distributions(method: Method, setting: dict[str, float]):
    tree = random_tree(seed=23, num_draft_tokens=2, **setting)
    assert total_variation(tree, law_of_method(tree, Verification(method))) < EXACT


@pytest.mark.parametrize("method", LOSSLESS, ids=lambda method: method.value)
def test_lossless_method_with_a_smaller_draft_vocabulary(method: Method):
    tree = random_tree(seed=5, num_draft_tokens=2)
    reduced = Tree(tree.target, tree.proposed[:, :2], 2, tree.sampling, draft_ids=torch.tensor([2, 0]))
    assert total_variation(reduced, law_of_method(reduced, Verification(method))) < EXACT


def test_draft_without_a_target_probability_is_never_accepted():
    tree = random_tree(seed=3, num_draft_tokens=2)
    tree.target[:, 1] = -torch.inf
    tree = Tree(tree.target, tree.proposed, 2, tree.sampling)
    for method in LOSSLESS:
        assert total_variation(tree, law_of_method(tree, Verification(method))) < EXACT


@pytest.mark.parametrize(
    ("verification", "least"),
    [
        (Verification(Method.typical), 0.05),
        (Verification(Method.lenient, leniency=0.5), 0.02),
        (Verification(Method.fly, window_size=1), 0.02),
    ],
    ids=["typical", "lenient", "fly"],
)
def test_lossy_method_deviates(verification: Verification, least: float):
    tree = random_tree(seed=2, num_draft_tokens=2)
    assert total_variation(tree, law_of_method(tree, verification)) > least


def expected_by_enumeration(tree: Tree, verification: Verification) -> float:
    proposal = tree.propose(False, verification.method)
    probability = acceptance_odds(proposal, verification).probability()
    draft_law = tree.path_probs(tree.draft_probs)
    expected = 0.0
    for pattern in product([False, True], repeat=tree.num_draft_tokens):
        passes = torch.tensor(pattern).expand_as(probability)
        weight = draft_law * torch.where(passes, probability, 1 - probability).prod(dim=1)
        expected += float((weight * count_accepted(proposal, verification, passes)).sum())
    return expected


@pytest.mark.parametrize(
    ("method", "column", "expected"),
    [(Method.block, 2, 11 / 9), (Method.probabilistic, 1, 10 / 9), (Method.strict, 0, 52 / 81)],
    ids=["block", "probabilistic", "strict"],
)
def test_documented_expected_acceptance(method: Method, column: int, expected: float):
    tree = pair_tree()
    assert expected_by_enumeration(tree, Verification(method)) == pytest.approx(expected, abs=EXACT)
    logits, draft = tree.round(one_hot=False)
    given_drafts = expected_accepted(acceptance_terms(logits, draft, plain_sampling(len(tree.paths))), draft)
    average = float((tree.path_probs(tree.draft_probs) * given_drafts[:, column]).sum())
    assert average == pytest.approx(expected, abs=EXACT)


@pytest.mark.parametrize("seed", range(5))
def test_methods_are_ordered_by_expected_acceptance(seed: int):
    tree = random_tree(seed)
    strict, probabilistic, block = (
        expected_by_enumeration(tree, Verification(method))
        for method in (Method.strict, Method.probabilistic, Method.block)
    )
    assert strict < probabilistic < block


@pytest.mark.parametrize("seed", range(3))
def test_block_with_one_draft_token_is_probabilistic(seed: int):
    tree = random_tree(seed, num_draft_tokens=1)
    proposal = tree.propose(False, Method.block)
    odds = [acceptance_odds(proposal, Verification(method)) for method in (Method.block, Method.probabilistic)]
    torch.testing.assert_close(odds[0].probability(), odds[1].probability(), rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("seed", range(3))
def test_methods_coincide_on_one_hot_proposals(seed: int):
    tree = random_tree(seed, num_draft_tokens=2)
    strict, probabilistic, block = (
        law_of_method(tree, Verification(method), one_hot=True)
        for method in (Method.strict, Method.probabilistic, Method.block)
    )
    torch.testing.assert_close(strict, probabilistic, rtol=0, atol=EXACT)
    torch.testing.assert_close(strict, block, rtol=0, atol=EXACT)
    logits, draft = tree.round(one_hot=True)
    expected = expected_accepted(acceptance_terms(logits, draft, plain_sampling(len(tree.paths))), draft)
    torch.testing.assert_close(expected, expected[:, :1].expand(-1, 3), rtol=0, atol=EXACT)


BLOCK = Verification(Method.block)


def law_of_block(tree: Tree, **mistaken: Callable) -> Tensor:
    return emitted_law(tree, tree.propose(False, Method.block), tree.path_probs(tree.draft_probs), BLOCK, **mistaken)


def unscaled_residual(tree: Tree) -> Tensor:
    plain = Verification(Method.probabilistic)
    return law_of_block(tree, emit=lambda proposal, _, num_accepted: emission_weights(proposal, plain, num_accepted))


def stops_at_first_failure(tree: Tree) -> Tensor:
    return law_of_block(tree, count=lambda proposal, _, passes: up_to_first_failure(passes, proposal))


def product_without_threshold(tree: Tree) -> Tensor:
    def odds(proposal: Proposal, _: Verification) -> Odds:
        ratios = log_prefix_ratios(proposal)[:, 1:].exp()
        return Odds(ratios, torch.ones_like(ratios))

    return law_of_block(tree, odds=odds)


@pytest.mark.parametrize(
    ("wrong", "documented"),
    [(unscaled_residual, 0.003), (stops_at_first_failure, 0.046), (product_without_threshold, 0.059)],
    ids=["unscaled residual", "stop at the first failure", "cumulative product without h"],
)
def test_wrong_version_of_block_deviates_as_documented(wrong, documented: float):
    tree = random_tree(seed=2)
    assert total_variation(tree, wrong(tree)) == pytest.approx(documented, rel=0.5)


@pytest.mark.parametrize("method", LOSSLESS, ids=lambda method: method.value)
def test_verify_decides_by_the_enumerated_functions(method: Method, monkeypatch: pytest.MonkeyPatch):
    """Given its uniforms, `verify` emits what the functions enumerated above say."""
    tree, verification = random_tree(seed=8), Verification(method)
    proposal = tree.propose(False, method)
    odds = acceptance_odds(proposal, verification)
    num_paths = len(tree.paths)
    generator = torch.Generator().manual_seed(4)
    accept, last = torch.rand(num_paths, 3, generator=generator), torch.rand(num_paths, generator=generator)
    monkeypatch.setattr(
        streams_module,
        "uniform",
        lambda seeds, purpose, positions, rounds: (accept if seeds.dim() == 2 else last).double(),
    )
    zeros = torch.zeros(num_paths, dtype=torch.long)
    logits, draft = tree.round(one_hot=False)
    verdict = verify(logits, draft, sampling_rows(tree.sampling, zeros), verification, Streams(zeros, zeros, zeros))
    num_accepted = count_accepted(proposal, verification, accept < odds.probability())
    assert verdict.num_accepted.tolist() == num_accepted.tolist()
    assert len(num_accepted.unique()) >= 3
    token_ids = choose(emission_weights(proposal, verification, num_accepted), last.double())
    for path, accepted in enumerate(num_accepted.tolist()):
        expected = [*tree.paths[path, :accepted].tolist(), int(token_ids[path])]
        assert verdict.token_ids[path].tolist() == expected + [-1] * (3 - accepted)


def test_odds_pass_below_their_probability():
    odds = Odds(*torch.tensor([[[0.3, 0.9, 0.0, 1.0]], [[0.6, 0.3, 1.0, 1.0]]], dtype=torch.float64))
    smallest, largest = 2.0**-54, 1 - 2.0**-53
    uniforms = torch.tensor([[0.4999, largest, smallest, largest]], dtype=torch.float64)
    assert odds.probability().tolist() == [[0.5, 1.0, 0.0, 1.0]]
    assert odds.passes(uniforms).tolist() == [[True, True, False, True]]
    assert odds.passes(torch.full_like(uniforms, 0.5)).tolist() == [[False, True, False, True]]
