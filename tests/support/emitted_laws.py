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

from kernels.contract import Draft, Sampling, Verification, VerificationMethod
from kernels.reference.odds import Odds
from kernels.reference.proposal import Proposal, propose
from kernels.reference.truncation import process, sampling_rows
from kernels.reference.verify import rule_of

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


def acceptance_odds(proposal: Proposal, verification: Verification) -> Odds:
    return rule_of(verification).odds(proposal)


def count_accepted(proposal: Proposal, verification: Verification, passes: Tensor) -> Tensor:
    return rule_of(verification).counted(passes, proposal)


def emission_weights(proposal: Proposal, verification: Verification, num_accepted: Tensor) -> Tensor:
    return rule_of(verification).emission(proposal, num_accepted)


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
