"""Trees of drafts over models with a memory: shapes, and the exact law of a rule's output by enumeration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from harness.config.tree import Tree
from kernels.contract import Draft, Sampling, SiblingDraws
from kernels.reference.tree_proposal import TreeProposal, propose_trees
from kernels.reference.tree_walk import Passes, Walked

Rule = Callable[[TreeProposal, Passes], Walked]


def path_of(shape: Tree, node: int) -> list[int]:
    """Draft tokens from the context to one of them; -1 is the context."""
    path: list[int] = []
    while node >= 0:
        path.insert(0, node)
        node = shape[node]
    return path


class TreeModels:
    """A target and a drafter with a random distribution after every prefix of up to `depth` tokens."""

    def __init__(self, vocab_size: int, depth: int, seed: int, zeros: bool = False) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.vocab_size, self.depth = vocab_size, depth
        prefixes = [prefix for length in range(depth + 1) for prefix in product(range(vocab_size), repeat=length)]
        size = (2, len(prefixes), vocab_size)
        weights = torch.rand(size, generator=generator, dtype=torch.float64) ** 2 + 0.01
        if zeros:
            # of each row of the drafter one token cannot be drawn
            weights[1, torch.arange(len(prefixes)), torch.arange(len(prefixes)) % vocab_size] = 0.0
        rows = weights / weights.sum(dim=2, keepdim=True)
        self.target, self.draft = (dict(zip(prefixes, table, strict=True)) for table in rows)

    def sequence_law(self) -> Tensor:
        """[V ** (depth + 1)] float64, of the first tokens, the first as the highest digit."""
        law = torch.ones(1, dtype=torch.float64)
        for length in range(self.depth + 1):
            prefixes = product(range(self.vocab_size), repeat=length)
            law = torch.cat([mass * self.target[prefix] for mass, prefix in zip(law, prefixes, strict=True)])
        return law


def sibling_law(shape: Tree, tokens: tuple[int, ...], place: int, row: Tensor, siblings: SiblingDraws) -> Tensor:
    """Of a draft token, given those before it."""
    if siblings is SiblingDraws.independent:
        return row
    left = row.clone()
    for other in range(place):
        if shape[other] == shape[place]:
            left[tokens[other]] = 0.0
    total = left.sum()
    return left / total if total > 0 else left


def drafted_trees(models: TreeModels, shape: Tree, siblings: SiblingDraws) -> list[tuple[tuple[int, ...], float]]:
    """Every tree of this shape that the drafter may draw, with its probability."""
    trees: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    for place in range(len(shape)):
        grown = []
        for tokens, prob in trees:
            prefix = tuple(tokens[node] for node in path_of(shape, shape[place]))
            law = sibling_law(shape, tokens, place, models.draft[prefix], siblings)
            grown += [
                ((*tokens, token), prob * float(law[token])) for token in range(models.vocab_size) if law[token] > 0
            ]
        trees = grown
    return trees


def batch_of(
    models: TreeModels, rounds: list[tuple[Tree, tuple[int, ...]]], siblings: SiblingDraws, is_one_hot: bool
) -> tuple[Tensor, Draft, Sampling]:
    """Ragged trees as a round: packed target rows, the draft with its cache, sampling parameters."""
    width = max(len(shape) for shape, _ in rounds)
    rows, cache = [], torch.full((len(rounds), width, models.vocab_size), torch.nan, dtype=torch.float64)
    parents, token_ids = (torch.full((len(rounds), width), filler) for filler in (-1, -7))
    for index, (shape, tokens) in enumerate(rounds):
        parents[index, : len(shape)], token_ids[index, : len(shape)] = torch.tensor(shape), torch.tensor(tokens)
        for node in range(-1, len(shape)):
            rows.append(models.target[tuple(tokens[step] for step in path_of(shape, node))])
        for place, parent in enumerate(shape):
            if parent not in shape[:place]:
                cache[index, place] = models.draft[tuple(tokens[step] for step in path_of(shape, parent))].log()
    counts = torch.tensor([len(shape) for shape, _ in rounds])
    logits = None if is_one_hot else cache
    draft = Draft(token_ids, counts, logits, parents=parents, siblings=siblings)
    return torch.stack(rows).log(), draft, Sampling.same_for_all(len(rounds), 1.0, 0, 1.0, 0.0)


def output_law(
    models: TreeModels, shape: Tree, rule: Rule, siblings: SiblingDraws, is_one_hot: bool = False
) -> tuple[Tensor, float]:
    """Exact law of the first depth + 1 tokens, one round and then the target, and the expected accepted tokens.

    Every tree of drafts meets every pattern of draft tokens that pass and fail.

    Args:
        models: the pair.
        shape: of the tree, which is at most as deep as the models know.
        rule: (TreeProposal, Passes) -> Walked.
        siblings: how the trees are drawn.
        is_one_hot: give verification no logits.
    """
    trees = drafted_trees(models, shape, siblings)
    patterns = torch.tensor(list(product([False, True], repeat=len(shape))))
    rows, draft, _ = batch_of(models, [(shape, tokens) for tokens, _ in trees], siblings, is_one_hot)
    times = len(patterns)
    draft = replace(
        draft,
        **{
            name: getattr(draft, name).repeat_interleave(times, 0)
            for name in ("token_ids", "num_draft_tokens", "parents")
        },
        idx_mapping=torch.arange(len(trees)).repeat_interleave(times),
    )
    rows = rows.view(len(trees), -1, models.vocab_size).repeat_interleave(times, 0).flatten(0, 1)
    masses = torch.tensor([prob for _, prob in trees], dtype=torch.float64).repeat_interleave(times)
    answers = patterns.repeat(len(trees), 1)
    asked = torch.zeros_like(answers)

    def passes(requests: Tensor, places: Tensor, numerators: Tensor, denominators: Tensor) -> Tensor:
        assert not asked[requests, places].any(), "each draft token is asked about once"
        asked[requests, places] = True
        chance = (numerators / denominators).clamp(max=1.0)
        given = answers[requests, places]
        masses[requests] *= torch.where(given, chance, 1 - chance)
        return given

    tree = propose_trees(rows, draft, Sampling.same_for_all(len(answers), 1.0, 0, 1.0, 0.0))
    walked = rule(tree, passes)
    # patterns that differ only where nothing was asked are one
    masses[(answers & ~asked).any(dim=1)] = 0.0
    weights = masses[:, None] * walked.weights / walked.weights.sum(dim=1, keepdim=True)
    expected, by_length = 0.0, [weights.new_zeros(models.vocab_size**length, models.vocab_size) for length in range(9)]
    for node in range(len(shape) + 1):
        path, here = path_of(shape, node - 1), (walked.nodes == node).nonzero()[:, 0]
        powers = torch.tensor([models.vocab_size**place for place in reversed(range(len(path)))], dtype=torch.long)
        codes = (draft.token_ids[here][:, path] * powers).sum(dim=1)
        by_length[len(path)].index_add_(0, codes, weights[here])
        expected += len(path) * float(masses[here].sum())
    law = torch.zeros(1, dtype=torch.float64)
    for length in range(models.depth + 1):
        prefixes = list(product(range(models.vocab_size), repeat=length))
        goes_on = torch.stack([models.target[prefix] for prefix in prefixes])
        law = (law[:, None] * goes_on + by_length[length]).flatten()
    return law, expected
