"""Exact enumeration of the joint law of the emitted tokens, through the functions that `verify` itself calls.

Every draft path of a tiny vocabulary is one request of a batch. For every pattern of draft tokens that pass or fail,
the acceptance probabilities give its probability, the counting rule its number of accepted tokens, and the emission
weights the law of the token that follows; what is left up to K + 1 tokens is drawn from the target.
"""

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor

import kernels.reference.verify as verify_module
from kernels.contract import Draft, Sampling, Streams, Verification, VerificationMethod
from kernels.reference.acceptance import acceptance_terms, expected_accepted
from kernels.reference.block import log_prefix_ratios
from kernels.reference.choose import choose
from kernels.reference.odds import Odds, up_to_first_failure
from kernels.reference.proposal import Proposal, propose
from kernels.reference.truncation import process, sampling_rows
from kernels.reference.verify import acceptance_odds, count_accepted, emission_weights, verify

Method = VerificationMethod
EXACT = 1e-12
LOSSLESS = [Method.strict, Method.probabilistic, Method.block, Method.lenient]


def plain_sampling(num_rows: int, temperature: float = 1.0, top_k: int = 0) -> Sampling:
    return Sampling(
        torch.full((num_rows,), temperature),
        torch.full((num_rows,), top_k),
        torch.ones(num_rows),
        torch.zeros(num_rows),
    )


class Tree:
    """Target and draft logits after every path, and one round in which each path is drafted by one request."""

    def __init__(
        self,
        target: Tensor,
        proposed: Tensor,
        num_draft_tokens: int,
        sampling: Sampling,
        draft_ids: Tensor | None = None,
    ):
        """`target` [num_nodes, V], `proposed` [num_nodes, V_draft] logits; children of a node follow in base V."""
        self.vocab_size, self.num_draft_tokens = target.shape[1], num_draft_tokens
        self.target, self.sampling, self.draft_ids = target, sampling, draft_ids
        self.proposed = proposed
        self.paths = torch.tensor(list(product(range(self.vocab_size), repeat=num_draft_tokens)))
        self.nodes = torch.stack([self.node(self.paths[:, :depth]) for depth in range(num_draft_tokens + 1)], dim=1)
        rows = sampling_rows(sampling, torch.zeros(len(target), dtype=torch.long))
        self.target_probs = process(target, rows).exp()
        on_target = torch.zeros_like(self.target_probs)
        ids = torch.arange(proposed.shape[1]) if draft_ids is None else draft_ids
        on_target[:, ids] = process(proposed, rows).exp()
        self.draft_probs = on_target

    def node(self, paths: Tensor) -> Tensor:
        """[n, depth] -> [n] index of the node: those of smaller depth first, then in base V."""
        found = torch.zeros(len(paths), dtype=torch.long)
        for token in paths.unbind(dim=1):
            found = found * self.vocab_size + token + 1
        return found

    def path_probs(self, probs: Tensor) -> Tensor:
        """[num_paths] probability of each draft path."""
        return probs[self.nodes[:, :-1], self.paths].prod(dim=1)

    def round(self, one_hot: bool) -> tuple[Tensor, Draft]:
        """(target logits, draft) of the batch."""
        draft = Draft(
            self.paths,
            torch.full((len(self.paths),), self.num_draft_tokens),
            None if one_hot else self.proposed[self.nodes[:, :-1]],
            None,
            None if one_hot else self.draft_ids,
        )
        return self.target[self.nodes].flatten(0, 1), draft

    def propose(self, one_hot: bool, method: Method) -> Proposal:
        logits, draft = self.round(one_hot)
        return propose(
            logits, draft, sampling_rows(self.sampling, torch.zeros_like(self.paths[:, 0])), method.traits.reads_draft
        )

    def continuation(self, prefix: tuple[int, ...]) -> Tensor:
        """[V^(K + 1)] law of the target's continuation to K + 1 tokens; zero unless it starts with the prefix."""
        law = torch.ones(1, dtype=torch.float64)
        first = 0
        for depth in range(self.num_draft_tokens + 1):
            step = self.target_probs[first : first + len(law)]
            if depth < len(prefix):
                step = torch.zeros_like(step)
                step[:, prefix[depth]] = 1.0
            first += len(law)
            law = (law[:, None] * step).flatten()
        return law


def random_tree(seed: int, vocab_size: int = 3, num_draft_tokens: int = 3, **setting: float) -> Tree:
    generator = torch.Generator().manual_seed(seed)
    num_nodes = sum(vocab_size**depth for depth in range(num_draft_tokens + 1))
    target, proposed = 1.5 * torch.randn(2, num_nodes, vocab_size, generator=generator, dtype=torch.float64)
    return Tree(target, proposed, num_draft_tokens, plain_sampling(1, **setting))


def pair_tree() -> Tree:
    """The documented pair: p = (1/3, 2/3), q = (2/3, 1/3) after every prefix, two draft tokens."""
    target = torch.tensor([1 / 3, 2 / 3], dtype=torch.float64).log().expand(7, 2)
    return Tree(target, target.flip(1), 2, plain_sampling(1))


def emitted_law(
    tree: Tree,
    proposal: Proposal,
    draft_law: Tensor,
    verification: Verification,
    odds: Callable[[Proposal, Verification], Odds] = acceptance_odds,
    count: Callable[[Proposal, Verification, Tensor], Tensor] = count_accepted,
    emit: Callable[[Proposal, Verification, Tensor], Tensor] = emission_weights,
) -> Tensor:
    """[V^(K + 1)] law of the first K + 1 output tokens, the later ones drawn from the target.

    Other odds, counts and emissions than the method's are mistakes.
    """
    probability = odds(proposal, verification).probability()
    law = torch.zeros(tree.vocab_size ** (tree.num_draft_tokens + 1), dtype=torch.float64)
    for pattern in product([False, True], repeat=tree.num_draft_tokens):
        passes = torch.tensor(pattern).expand_as(probability)
        weight = draft_law * torch.where(passes, probability, 1 - probability).prod(dim=1)
        num_accepted = count(proposal, verification, passes)
        last = emit(proposal, verification, num_accepted)
        last = last / last.sum(dim=1, keepdim=True)
        for path in (weight > 0).nonzero()[:, 0].tolist():
            accepted = tuple(tree.paths[path, : num_accepted[path]].tolist())
            for token in (last[path] > 0).nonzero()[:, 0].tolist():
                law += weight[path] * last[path, token] * tree.continuation((*accepted, token))
    return law


def law_of_method(tree: Tree, verification: Verification, one_hot: bool = False) -> Tensor:
    """The law with drafts from the draft distribution; one-hot proposals are drafted by the same tokens."""
    proposal = tree.propose(one_hot, verification.method)
    assert not (proposal.impossible & (tree.path_probs(tree.draft_probs) > 0)).any()
    return emitted_law(tree, proposal, tree.path_probs(tree.draft_probs), verification)


def total_variation(tree: Tree, law: Tensor) -> float:
    assert float(law.sum()) == pytest.approx(1, abs=EXACT)
    return float((law - tree.continuation(())).abs().sum() / 2)


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
        (Verification(Method.fly, fly_window_size=1), 0.02),
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
        verify_module,
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
