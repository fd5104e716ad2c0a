"""Rules for trees are lossless, by exact enumeration of every tree and every answer, mistaken ones are not; and their
verification through `verify`: chains as ever, ragged trees in one batch, what is refused and flagged.

Trees of drafts over models with a memory: shapes, and the exact law of a rule's output by enumeration.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor

from harness.config.tree import Tree, branching
from kernels.contract import NO_TOKEN, Draft, Sampling, SiblingDraws, Streams, TokenMask, Verification
from kernels.methods import TreeMethod
from kernels.random.streams import Purpose
from kernels.reference import kseq, tree_proposal
from kernels.reference.draw import draw
from kernels.reference.draw_children import draw_children
from kernels.reference.kseq import walk_by_kseq
from kernels.reference.recursive import walk_recursively
from kernels.reference.traversal import walk_by_traversal
from kernels.reference.tree_proposal import TreeProposal, propose_trees
from kernels.reference.tree_shape import branches, chain_parents, depths
from kernels.reference.tree_walk import Passes, Walked
from kernels.reference.truncation import sampling_rows
from kernels.reference.verify import verify
from tests.support.random_round import GREEDY, PLAIN, Round

pytestmark = pytest.mark.fast


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


EXACT = 1e-12
SHAPES = {"1-1": branching(1, 1), "2-1": branching(2, 1), "2-2": branching(2, 2), "uneven": (-1, 0, -1, 0, 1)}
INDEPENDENT, DISTINCT = SiblingDraws
CASES = [(method, siblings) for method in TreeMethod for siblings in method.traits.siblings]


def models_of(shape):
    return TreeModels(3, 3 if shape == SHAPES["uneven"] else 2, seed=len(shape))


def variation(rule, shape, siblings, is_one_hot=False, models=None):
    """Total variation between the output's law and the target's; the mass must be whole."""
    models = models or models_of(shape)
    law, _ = output_law(models, shape, rule, siblings, is_one_hot)
    return float((law - models.sequence_law()).abs().sum() / 2)


def rule_of(method):
    return lambda tree, passes: method.rule().walk(tree, passes, None)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(("method", "siblings"), CASES, ids=[f"{m.value} {s.value}" for m, s in CASES])
def test_the_output_has_the_targets_law(method, siblings, shape):
    """Would catch a wrong order of leaves, a law of siblings that forgets those before, a residual of another node."""
    assert variation(rule_of(method), shape, siblings) < EXACT


@pytest.mark.parametrize("method", [TreeMethod.recursive, TreeMethod.traversal], ids=lambda method: method.value)
def test_certain_siblings_have_the_targets_law(method):
    """Trees whose tokens are given, whatever they are: of any law, since it is not asked for."""
    assert variation(rule_of(method), SHAPES["2-2"], DISTINCT, is_one_hot=True) < EXACT


def test_of_certain_siblings_recursive_and_traversal_accept_as_many():
    """The methods' table says that they follow the same law."""
    lengths = [
        output_law(models_of(shape), shape, rule_of(method), DISTINCT, is_one_hot=True)[1]
        for shape in (SHAPES["2-2"], SHAPES["uneven"])
        for method in TreeMethod
        if method.traits.is_strict_on_one_hot
    ]
    assert len(lengths) == 4 and lengths[0] > 1
    assert lengths[0] == pytest.approx(lengths[1], abs=EXACT) and lengths[2] == pytest.approx(lengths[3], abs=EXACT)


@pytest.mark.parametrize("method", [TreeMethod.recursive, TreeMethod.traversal], ids=lambda method: method.value)
def test_drafters_that_lack_tokens_change_nothing(method):
    models = TreeModels(3, 2, seed=5, zeros=True)
    assert variation(rule_of(method), SHAPES["2-1"], DISTINCT, models=models) < EXACT


def test_traversal_accepts_more_than_recursive_rejection():
    """On the same trees; a traversal that stops early would not."""
    for siblings in SiblingDraws:
        models = models_of(SHAPES["2-2"])
        lengths = [
            output_law(models, SHAPES["2-2"], rule_of(method), siblings)[1]
            for method in (TreeMethod.recursive, TreeMethod.traversal)
        ]
        assert lengths[1] > lengths[0] + 0.005


def test_the_faulty_update_of_traversal_is_not_lossless():
    """a_u <- min(1, Z / (1 - S(x))), as in a public implementation."""

    def faulty(mass, chance, deleted_prob):
        return torch.where(deleted_prob < 1, mass / (1 - deleted_prob).clamp(min=1e-300), 1.0).clamp(max=1.0)

    def rule(tree, passes):
        return walk_by_traversal(tree, passes, faulty)

    # the context's chance stays 1 in either: it shows below it
    found = [variation(rule, SHAPES[name], siblings) for name in ("1-1", "2-2") for siblings in SiblingDraws]
    assert min(found) > 0.005


@pytest.mark.parametrize("method", [TreeMethod.recursive, TreeMethod.traversal], ids=lambda method: method.value)
def test_the_wrong_law_of_siblings_is_not_lossless(method, monkeypatch):
    """Verified as independent though distinct."""
    laws = tree_proposal.TreeProposal.laws

    def independent(self, requests, places):
        return laws(replace(self, siblings=INDEPENDENT), requests, places)

    monkeypatch.setattr(tree_proposal.TreeProposal, "laws", independent)
    assert variation(rule_of(method), (-1, -1), DISTINCT, models=TreeModels(4, 1, seed=1)) > 0.005


def test_a_residual_that_is_not_normalised_is_not_lossless():
    def rule(tree, passes):
        return walk_recursively(tree, passes, lambda left, laws: (left - laws).clamp(min=1e-300))

    for siblings in SiblingDraws:
        assert variation(rule, (-1, -1), siblings, models=TreeModels(4, 1, seed=1)) > 0.005


def test_a_residual_of_kseq_that_ignores_the_discount_is_not_lossless():
    def rule(tree, passes):
        return walk_by_kseq(tree, passes, torch.ones_like)

    assert variation(rule, (-1, -1), INDEPENDENT, models=TreeModels(4, 1, seed=1)) > 0.005


def test_a_discount_of_kseq_that_is_a_little_off_changes_the_law_as_little(monkeypatch):
    """Either way, by a share of it at most. Would catch a bound that leaves out what follows the accepted token."""
    ratio = kseq.kseq_ratio
    for share in (-1e-4, 1e-4):

        def off(*rows, share=share):
            rho, left = ratio(*rows)
            return rho * (1 + share), left

        monkeypatch.setattr(kseq, "kseq_ratio", off)
        found = variation(rule_of(TreeMethod.kseq), SHAPES["2-1"], INDEPENDENT, models=TreeModels(3, 2, seed=3))
        assert 1e-7 < found < 1e-4


ALL = pytest.mark.parametrize("method", TreeMethod, ids=lambda method: method.value)
SETTINGS = [PLAIN, (0.7, 5, 0.9, 0.0), GREEDY, (1.3, 0, 1.0, 0.05)]


@pytest.mark.parametrize("method", [TreeMethod.recursive, TreeMethod.traversal], ids=lambda method: method.value)
@pytest.mark.parametrize("is_one_hot", [False, True], ids=["cached", "one-hot"])
def test_with_one_child_a_node_every_token_is_that_of_the_method_for_chains(method, is_one_hot):
    """Ragged, with padded slots and every kind of truncation. Would catch another uniform, residual or flag."""
    batch = Round(SETTINGS * 60, [3, 1, 0, 2, 3] * 48, vocab_size=11, seed=3)
    requests = torch.arange(len(batch.lengths))
    batch.token_ids[::17, 1] = 99
    draft = batch.draft(requests)
    if is_one_hot:
        draft = Draft(draft.token_ids, draft.num_draft_tokens)
    inputs = (batch.sampling, Verification(method.traits.on_chains), batch.streams)
    wanted = verify(batch.rows(requests), draft, *inputs)
    assert 0 < wanted.num_accepted.float().mean() < 1.5 and bool(wanted.invalid.any())
    for parents in (None, chain_parents(*draft.token_ids.shape)):
        found = verify(
            batch.rows(requests), replace(draft, parents=parents), inputs[0], Verification(method), inputs[2]
        )
        for name in ("token_ids", "num_accepted", "invalid"):
            assert torch.equal(getattr(found, name), getattr(wanted, name)), name
        steps = torch.arange(draft.token_ids.shape[1])
        assert torch.equal(found.path, torch.where(steps < wanted.num_accepted[:, None], steps, -1))


def test_an_only_child_is_drawn_as_ever():
    batch = Round(SETTINGS * 5, [1] * 20, vocab_size=50)
    rows = batch.cache[:, 0]
    wanted = draw(rows, batch.sampling, batch.streams, Purpose.draft).token_ids
    for siblings in SiblingDraws:
        none = torch.zeros(20, 1, dtype=torch.long)
        assert torch.equal(draw_children(rows, batch.sampling, batch.streams, siblings, none)[:, 0], wanted)


def test_distinct_children_have_the_law_of_draws_without_replacement():
    """And certain ones are the largest logits; a row that runs out of tokens has no further child."""
    count, probs = 200_000, torch.tensor([0.5, 0.3, 0.2, 0.0])
    seeds = torch.arange(count)
    streams = Streams(seeds, torch.full_like(seeds, 5), torch.ones_like(seeds))
    rows, places = probs.log().expand(count, -1), torch.arange(4).expand(count, -1)
    plain = Sampling.same_for_all(count, 1.0, 0, 1.0, 0.0)
    found = draw_children(rows, plain, streams, DISTINCT, places)
    assert bool((found[:, 3] == NO_TOKEN).all()) and bool((found[:, :3].sort(dim=1).values == torch.arange(3)).all())
    shares = torch.bincount(found[:, 0] * 3 + found[:, 1], minlength=9).double() / count
    wanted = torch.tensor([[0, 0.3, 0.2], [0.5 * 0.3 / 0.7, 0, 0.2 * 0.3 / 0.7], [0.5 * 0.2 / 0.8, 0.3 * 0.2 / 0.8, 0]])
    assert bool(((shares - wanted.flatten().double()).abs() < 5 * (0.25 / count) ** 0.5).all())
    certain = draw_children(rows[:1], Sampling.same_for_all(1, 0.0, 0, 1.0, 0.0), streams, DISTINCT, places[:1])
    assert certain.tolist() == [[0, 1, 2, NO_TOKEN]]


def ragged_round(siblings, is_one_hot=False):
    """Trees of several shapes, drawn as certification does, and the streams of their requests."""
    models = TreeModels(4, 3, seed=4)
    shapes = [branching(2, 2), branching(3), (), branching(1, 1, 1), (-1, 0, -1, 0, 1), branching(2, 1)]
    rounds = []
    for index, shape in enumerate(shapes * 40):
        generator = torch.Generator().manual_seed(index)
        tokens: list[int] = []
        for place in range(len(shape)):
            row = models.draft[tuple(tokens[step] for step in path_of(shape, shape[place]))].clone()
            if siblings is DISTINCT:
                row[[tokens[other] for other in range(place) if shape[other] == shape[place]]] = 0
            tokens.append(int(torch.multinomial(row, 1, generator=generator)))
        rounds.append((shape, tuple(tokens)))
    seeds = torch.arange(len(rounds)) * 7919
    return *batch_of(models, rounds, siblings, is_one_hot), Streams(seeds, seeds % 5, seeds % 3)


@ALL
def test_a_ragged_batch_with_padded_slots_is_its_requests_alone(method):
    """Would catch a tree that is walked by another's parents, and noise that depends on the place in the batch."""
    rows, draft, sampling, streams = ragged_round(INDEPENDENT)
    together = verify(rows, draft, sampling, Verification(method), streams)
    assert together.num_accepted.max() == 3 and not bool(together.invalid.any())
    ends = (draft.num_draft_tokens + 1).cumsum(0).tolist()
    for request, end in list(enumerate(ends))[:60]:
        one = torch.tensor([request])
        count = int(draft.num_draft_tokens[request])
        alone = Draft(
            draft.token_ids[one, :count],
            draft.num_draft_tokens[one],
            draft.logits[one, :count],
            parents=draft.parents[one, :count],
        )
        mine = Streams(streams.seeds[one], streams.positions[one], streams.rounds[one])
        found = verify(rows[end - count - 1 : end], alone, sampling_rows(sampling, one), Verification(method), mine)
        assert torch.equal(found.token_ids[0], together.token_ids[request, : count + 1])
        assert torch.equal(found.path[0], together.path[request, :count])
    padded = replace(
        draft,
        token_ids=torch.cat([draft.token_ids, draft.token_ids[:1] * 0]),
        num_draft_tokens=torch.cat([draft.num_draft_tokens, torch.tensor([-1])]),
        parents=torch.cat([draft.parents, draft.parents[:1] * 0 - 1]),
        logits=torch.cat([draft.logits, draft.logits[:1] * torch.nan]),
    )
    more = Streams(*(torch.cat([each, each[:1]]) for each in (streams.seeds, streams.positions, streams.rounds)))
    every = Sampling.same_for_all(len(ends) + 1, 1.0, 0, 1.0, 0.0)
    found = verify(rows, padded, every, Verification(method), more)
    assert torch.equal(found.path[:-1], together.path) and bool((found.path[-1] == -1).all())
    assert torch.equal(found.token_ids[:-1], together.token_ids) and bool((found.token_ids[-1] == -1).all())


@ALL
def test_at_temperature_0_the_tokens_are_the_argmax(method):
    """Along the tree as far as it has them. Trees of certain children, given with their logits."""
    rows, draft, _, streams = ragged_round(INDEPENDENT)
    sampling = Sampling.same_for_all(len(streams.seeds), 0.0, 0, 1.0, 0.0)
    found = verify(rows, draft, sampling, Verification(method), streams)
    best, begin = rows.argmax(dim=1), 0
    for request, count in enumerate(draft.num_draft_tokens.tolist()):
        node, tokens = -1, []
        while True:
            tokens.append(int(best[begin + node + 1]))
            children = [place for place in range(count) if draft.parents[request, place] == node]
            node = next((place for place in children if draft.token_ids[request, place] == tokens[-1]), None)
            if node is None:
                break
        assert found.token_ids[request, : len(tokens)].tolist() == tokens
        assert int(found.num_accepted[request]) == len(tokens) - 1
        begin += count + 1


@ALL
def test_a_masked_target_emits_and_accepts_what_is_allowed(method):
    rows, draft, sampling, streams = ragged_round(INDEPENDENT)
    mask = TokenMask(torch.tensor([[0b0111]], dtype=torch.int32), torch.zeros(len(rows), dtype=torch.long))
    found = verify(rows, draft, sampling, Verification(method), streams, mask=mask)
    assert int(found.token_ids.max()) == 2 and not bool((found.token_ids == 3).any())


def test_a_token_that_its_row_cannot_have_drawn_is_left_out_and_flagged():
    """A distinct sibling that repeats another; a place without a token is no fault."""
    rows = torch.zeros(3, 3)
    draft = Draft(
        torch.tensor([[1, 1]]),
        torch.tensor([2]),
        torch.zeros(1, 2, 3),
        parents=torch.tensor([[-1, -1]]),
        siblings=DISTINCT,
    )
    # the target refuses token 1, so that both children are looked at
    rows[0, 1] = -torch.inf
    inputs = (
        Sampling.same_for_all(1, 1.0, 0, 1.0, 0.0),
        Verification(TreeMethod.recursive),
        Streams(*torch.ones(3, 1).long()),
    )
    assert verify(rows, draft, *inputs).invalid.tolist() == [True]
    absent = replace(draft, token_ids=torch.tensor([[1, NO_TOKEN]]))
    assert verify(rows, absent, *inputs).invalid.tolist() == [False]


def test_nodes_of_one_depth_have_noise_of_their_own_and_chains_what_they_had():
    parents = torch.tensor([branching(2, 2), (-1, 0, 1, 2, 3, 4)])
    levels = depths(parents)
    assert levels.tolist() == [[0, 1, 1, 2, 2, 2, 2], [0, 1, 2, 3, 4, 5, 6]]
    found = branches(levels)
    assert found[1].tolist() == [0] * 6
    keys = list(zip(levels[0, 1:].tolist(), found[0].tolist(), strict=True))
    assert len(set(keys)) == 6


def test_what_is_no_tree_is_refused():
    rows, draft, sampling, streams = ragged_round(INDEPENDENT)
    inputs = sampling, Verification(TreeMethod.traversal), streams
    with pytest.raises(ValueError, match="must be smaller than a token's own index"):
        verify(rows, replace(draft, parents=draft.parents + 7), *inputs)
    with pytest.raises(ValueError, match="one for each draft token"):
        verify(rows, replace(draft, parents=draft.parents[:, :1]), *inputs)
    by_kseq = sampling, Verification(TreeMethod.kseq), streams
    with pytest.raises(ValueError, match="independent draws of cached logits, found distinct"):
        verify(rows, replace(draft, siblings=DISTINCT), *by_kseq)
    with pytest.raises(ValueError, match="found drafts without logits"):
        verify(rows, replace(draft, logits=None), *by_kseq)
