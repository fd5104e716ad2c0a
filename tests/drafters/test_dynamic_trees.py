"""Dynamic trees: which nodes are chosen, and the engine that drafts them, with trees that differ by request.

Would catch values that are not products along the path, a child without its parent, a beam that mixes up the parents of
its nodes, a mask or a position of another node, and tokens that are verified as if they had been drawn.
"""

from itertools import count

import pytest
import torch

from harness.config.sampling import SamplingSettings
from harness.config.tree import DynamicTree, branching
from harness.drafters.draft_tree import DraftTree
from harness.drafters.dynamic_tree import DynamicTreeShape
from harness.drafters.ngram_run import NgramDrafter, NgramTreeDrafter
from kernels.contract import NO_TOKEN, DraftSampling, SiblingDraws
from kernels.methods import TreeMethod
from kernels.reference.draw_children import draw_children
from kernels.reference.tree_shape import depths
from kernels.tree.dynamic_shape import Candidates, best_children
from tests.engine.test_engine_law import DRAFT, FALSE_ALARM, NUM_TOKENS, TARGET, fit
from tests.engine.test_engine_trees import perfect, tiny, tokens
from tests.support.draft_paths import paths_of
from tests.support.tiny_engines import tiny_engine
from tests.support.tiny_models import random_target
from tests.support.toy_markov import outputs, toy_engine, toy_requests, transitions

GREEDY = DraftSampling.greedy
COLD = SamplingSettings(0.0)
BOUNDS = [DynamicTree(*sizes) for sizes in ((8, 4, 3), (5, 5, 1), (3, 1, 3), (12, 2, 3), (20, 4, 3))]


def dynamic(*bounds):
    return DynamicTreeShape(DynamicTree(*bounds))


def chosen_by(rows, bounds):
    """The trees of all first tokens of a Markov drafter, through the functions that drafters call."""
    candidates, last = Candidates(), torch.arange(len(rows))[:, None]
    for depth in range(bounds.depth):
        last = candidates.next_beam(bounds.width).token_ids.clamp_min(0) if depth else last
        found, logprobs = best_children(rows[last.flatten()], bounds.width, draw_children)
        candidates.add(found.view(*last.shape, -1), logprobs.view(*last.shape, -1))
    return candidates.best(bounds.num_nodes)


def best_paths(logprobs_after, bounds):
    """The same by going through all paths, in float64."""
    level, every = [((), 0.0)], []
    for _ in range(bounds.depth):
        children = []
        for path, value in level:
            row = logprobs_after(path)
            best = sorted(range(len(row)), key=lambda token, row=row: -row[token])[: bounds.width]
            children += [((*path, token), value + row[token]) for token in best]
        every += children
        level = sorted(children, key=lambda item: -item[1])[: bounds.width]
    return {path for path, _ in sorted(every, key=lambda item: -item[1])[: bounds.num_nodes]}


@pytest.mark.parametrize("bounds", BOUNDS, ids=lambda bounds: bounds.name)
def test_the_nodes_are_the_most_probable_paths(bounds):
    rows = (transitions(6, seed=2, sharpness=2.0) * 3.7).log()
    logprobs = rows.double().log_softmax(-1)
    found = chosen_by(rows, bounds)
    for first in range(6):
        wanted = best_paths(lambda path, first=first: logprobs[path[-1] if path else first].tolist(), bounds)
        tree = paths_of(*(each[first].tolist() for each in found[:3]))
        assert len(tree) == bounds.num_nodes and set(tree) == wanted


def test_a_chosen_node_has_its_parent_where_values_are_equal():
    """Children that are certain, so that whole paths have value 1, and rows whose tokens are all alike."""
    certain = torch.full((4, 4), -torch.inf)
    certain[torch.arange(4), torch.tensor([1, 2, 3, 0])] = 0.0
    for rows in (certain, torch.zeros(4, 4), torch.full((4, 4), 1e4)):
        found = chosen_by(rows, DynamicTree(5, 4, 2))
        places = torch.arange(5)
        assert bool(((found.parents < places) & (found.parents >= -1)).all())
        levels = depths(found.parents)[:, 1:]
        inner = found.parents >= 0
        assert bool((levels.gather(1, found.parents.clamp_min(0))[inner] == levels[inner] - 1).all())
    assert chosen_by(certain, DynamicTree(5, 4, 2)).num_draft_tokens.tolist() == [4] * 4


def test_what_has_no_probability_is_no_node():
    """A row without a distribution, and rows of two tokens where three are wanted."""
    rows = torch.tensor([[0.0, 1.0, -torch.inf], [torch.nan, 0.0, 0.0], [0.5, -torch.inf, 0.0]])
    found = chosen_by(rows, DynamicTree(6, 2, 3))
    trees = [paths_of(*(each[first].tolist() for each in found[:3])) for first in range(3)]
    assert set(trees[0]) == {(0,), (1,), (0, 0), (0, 1)} and trees[1] == []
    assert set(trees[2]) == {(0,), (2,), (0, 0), (0, 1), (2, 0), (2, 2)}
    assert found.token_ids[0, 4:].tolist() == [NO_TOKEN] * 2 and found.parents[0, 4:].tolist() == [-1] * 2


@pytest.fixture(scope="module")
def baseline():
    return tokens(tiny_engine("none", capacity=90, max_new_tokens=16, sampling=COLD))[0]


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        ("eagle", TreeMethod.recursive),
        ("eagle3", TreeMethod.traversal),
        ("mtp", TreeMethod.recursive),
        ("ngram", TreeMethod.traversal),
    ],
)
def test_at_temperature_0_the_tokens_are_the_baselines(kind, method, baseline):
    engine = tiny(kind, tree=dynamic(8, 4, 3), sampling=COLD, method=method, draft_sampling=GREEDY)
    assert tokens(engine)[0] == baseline


def test_a_drafter_that_is_the_target_is_accepted_to_the_end(baseline):
    """Its cache must keep the accepted path, whose places differ by request. Several tokens a round."""
    found, run = tokens(perfect(tree=dynamic(9, 4, 2), sampling=COLD, draft_sampling=GREEDY))
    rounds = [item for record in run.requests for item in record.rounds if item.num_draft_tokens == 9]
    assert found == baseline and rounds
    # the best child of a node is not always among the nodes
    assert all(item.num_accepted_tokens >= 2 for item in rounds)
    assert len({item.path for item in rounds}) > 1


def test_the_trees_of_a_draft_model_are_those_of_its_whole_sequences():
    """Without a cache, masks or places. Would catch a node that sees another than its ancestors."""
    bounds = DynamicTree(8, 4, 2)
    engine = tiny("draft_model", tree=DynamicTreeShape(bounds), sampling=COLD, draft_sampling=GREEDY)
    model, propose, seen = random_target(seed=9, num_hidden_layers=1), engine.drafter.propose, []

    def recorded(batch):
        draft = propose(batch)
        for row, length in enumerate(batch.lengths.tolist()):
            if length > 2 and len(seen) < 12:
                tree = paths_of(*(each[row].tolist() for each in (draft.token_ids, draft.parents)), bounds.num_nodes)
                seen.append((batch.token_ids[row, :length].tolist(), set(tree)))
        return draft

    engine.drafter.propose = recorded
    tokens(engine)

    def logprobs_after(context, path):
        read = torch.tensor([[*context, *path]])
        positions = torch.arange(read.shape[1])[None]
        view = model.new_cache(1, 90).view(slice(0, 1), positions, read.shape[1])
        return model.logits(model.forward(read, positions, view).hidden)[0, -1].double().log_softmax(-1).tolist()

    for context, tree in seen:
        assert tree == best_paths(lambda path, context=context: logprobs_after(context, path), bounds)
    assert len({len({len(path) for path in tree}) for _, tree in seen}) > 1


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "mtp"])
def test_with_room_for_all_children_a_head_drafts_the_full_tree(kind):
    """Two levels of three children are the fixed tree 3-3 of greedy drafts, in another order."""

    def trees(shape):
        engine, found = tiny(kind, tree=shape, sampling=COLD, draft_sampling=GREEDY), {}
        propose = engine.drafter.propose

        def recorded(batch):
            draft = propose(batch)
            for row, length in enumerate(batch.lengths.tolist()):
                nodes = paths_of(draft.token_ids[row].tolist(), draft.parents[row].tolist(), 12)
                found[tuple(batch.token_ids[row, :length].tolist())] = set(nodes)
            return draft

        engine.drafter.propose = recorded
        tokens(engine, 4)
        return found

    chosen, full = trees(dynamic(12, 2, 3)), trees(DraftTree(branching(3, 3), SiblingDraws.distinct))
    shared = [context for context in chosen.keys() & full.keys() if len(context) > 2]
    assert len(shared) > 20 and all(chosen[context] == full[context] for context in shared)


@pytest.mark.parametrize("method", [TreeMethod.recursive, TreeMethod.traversal], ids=lambda item: item.value)
def test_of_width_1_it_is_the_greedy_chain_token_for_token(method):
    """And its counts."""
    options = {"method": method, "draft_sampling": GREEDY}
    found, run = tokens(tiny("eagle3", tree=dynamic(3, 3, 1), **options))
    wanted, chain = tokens(tiny("eagle3", tree=DraftTree(branching(1, 1, 1), SiblingDraws.distinct), **options))
    assert found == wanted
    for record, other in zip(run.requests, chain.requests, strict=True):
        for name in ("path", "num_draft_tokens", "num_accepted_tokens", "num_draft_positions"):
            assert [getattr(item, name) for item in record.rounds] == [getattr(item, name) for item in other.rounds]


@pytest.mark.parametrize("method", [TreeMethod.recursive, TreeMethod.traversal], ids=lambda item: item.value)
def test_the_law_of_the_first_tokens_is_the_targets(method):
    """Over two rounds and more, in slots that are used again."""
    engine = toy_engine(TARGET, DRAFT, method, GREEDY, tree=dynamic(6, 3, 2), max_new_tokens=NUM_TOKENS, num_slots=1500)
    assert fit(outputs(engine, toy_requests(6000)).values(), TARGET, NUM_TOKENS) > FALSE_ALARM


def test_evidence_is_counted_by_the_depths_of_each_rounds_tree():
    """Trees of several depths; the counts are those of the drafts that were recorded on the way."""
    engine = toy_engine(
        TARGET, DRAFT, TreeMethod.recursive, GREEDY, tree=dynamic(3, 3, 2), max_new_tokens=40, num_slots=1
    )
    propose, drafts = engine.drafter.propose, []

    def recorded(batch):
        drafts.append(propose(batch))
        return drafts[-1]

    engine.drafter.propose = recorded
    (record,) = engine.run(toy_requests(1), lambda answer: None).requests
    deepest, number = set(), count()
    for item in record.rounds[1:-3]:
        levels = depths(drafts[next(number)].parents)[0, 1:]
        assert item.num_draft_positions == int(levels.max()) and item.num_draft_tokens == 3
        assert [int(levels[node]) for node in item.path] == list(range(1, len(item.path) + 1))
        deepest.add(item.num_draft_positions)
    assert len(deepest) > 1


def test_the_continuations_of_several_matches_are_accepted_without_bias():
    """Drafts from the request's own text: a tree accepts more than its first match, and the law is the target's."""

    def run(tree, method, requests):
        drafter = NgramDrafter(3, 1) if tree is None else NgramTreeDrafter(3, 1, tree)
        engine = toy_engine(
            TARGET, DRAFT, method, GREEDY, drafter=drafter, tree=tree, num_speculative_tokens=3,
            max_new_tokens=NUM_TOKENS, num_slots=1500,
        )  # fmt: skip
        done = engine.run(requests, lambda answer: None).requests
        rounds = [item for record in done for item in record.rounds]
        return [record.output_token_ids for record in done], sum(item.num_accepted_tokens for item in rounds)

    prompt = (0, 1, 0, 2, 0, 1, 1, 0)
    requests = toy_requests(6000, prompt=prompt)
    found, num_accepted = run(dynamic(6, 3, 3), TreeMethod.traversal, requests)
    assert fit(found, TARGET, NUM_TOKENS) > FALSE_ALARM
    assert num_accepted > 1.2 * run(None, TreeMethod.traversal.traits.on_chains, requests)[1] > 0
