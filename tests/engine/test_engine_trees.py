"""Trees in the engine: tokens of the baseline at temperature 0, chains written as trees, the law, and what is counted.

Would catch a mask that shows a node its siblings, positions that do not go by depth, a cache that keeps another node
than the accepted one, siblings drawn with one another's noise, and evidence that depends on the outcome.
"""

from dataclasses import replace

import pytest
import torch

from harness.config.sampling import SamplingSettings
from harness.config.tree import branching
from harness.drafters.draft_tree import DraftTree
from harness.engine.token_logprobs import LogprobsSettings
from harness.models.slot_cache import SlotCache
from kernels.contract import DraftSampling, SiblingDraws
from kernels.core import reference_core
from kernels.methods import TreeMethod
from tests.engine.test_engine_law import DRAFT, FALSE_ALARM, NUM_TOKENS, TARGET, WIDE_DRAFT, WIDE_TARGET, fit
from tests.support.tiny_engines import tiny_engine, tiny_requests
from tests.support.tiny_models import random_target
from tests.support.toy_markov import outputs, toy_engine, toy_requests

INDEPENDENT, DISTINCT = SiblingDraws
SAMPLED, GREEDY = DraftSampling.sampled, DraftSampling.greedy
UNEVEN = (-1, 0, -1, 0, 1, 4, 2, -1)
"""Nodes not level by level, four deep, with one, two and three children."""
SHAPES = {"2-2": branching(2, 2), "3-1-1": branching(3, 1, 1), "uneven": UNEVEN}
COLD = SamplingSettings(0.0)
HEADS = ("eagle", "eagle3", "mtp", "draft_model")


def tree(shape, siblings=DISTINCT):
    return DraftTree(shape, siblings)


def tiny(kind, **options):
    """An engine whose requests outlast several rounds, so that slots are refilled while others go on."""
    settings = {"capacity": 90, "max_new_tokens": 16, "method": TreeMethod.recursive} | options
    return tiny_engine(kind, **settings)


def tokens(engine, count=5):
    """Output of more requests than slots, with prompts of 3 to 9 tokens, the longest of which begin beside others."""
    lengths = [3 + 6 * index // (count - 1) for index in range(count)]
    given = zip(tiny_requests(count, 9), lengths, strict=True)
    asked = [replace(item, token_ids=item.token_ids[:length]) for item, length in given]
    run = engine.run(asked, lambda answer: None)
    assert run.num_invalid == 0
    return {record.prompt_id: record.output_token_ids for record in run.requests}, run


@pytest.fixture(scope="module")
def baseline():
    return tokens(tiny_engine("none", capacity=90, max_new_tokens=16, sampling=COLD))[0]


@pytest.mark.parametrize(
    ("kind", "shape", "method"),
    [
        ("eagle", "uneven", TreeMethod.recursive),
        ("eagle3", "2-2", TreeMethod.traversal),
        ("mtp", "3-1-1", TreeMethod.kseq),
        ("draft_model", "uneven", TreeMethod.traversal),
    ],
    ids=lambda item: getattr(item, "value", item),
)
def test_at_temperature_0_the_tokens_are_the_baselines(kind, shape, method, baseline):
    """Of drafters that the target seldom agrees with; those of the built-in models are tested with them."""
    shape = tree(SHAPES[shape], method.traits.siblings[-1])
    assert tokens(tiny(kind, tree=shape, sampling=COLD, method=method))[0] == baseline


def perfect(**options):
    """A draft model that is the target: whatever is drafted first is accepted, several tokens a round."""
    engine = tiny("draft_model", **options)
    engine.drafter.model = random_target(seed=3, num_hidden_layers=5)
    engine.drafter._cache = engine.drafter.model.new_cache(4, 90)
    return engine


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_drafter_that_is_the_target_is_accepted_down_to_a_leaf(shape, baseline):
    """Its own cache must keep the accepted path too. Would catch one that keeps a sibling, or reads a leaf's keys."""
    found, run = tokens(perfect(tree=tree(shape), sampling=COLD))
    assert found == baseline
    drafts = [item for record in run.requests for item in record.rounds if item.num_draft_tokens == len(shape)]
    # the best child of every node comes first
    leaf = []
    while (node := leaf[-1] if leaf else -1) in shape:
        leaf.append(shape.index(node))
    assert drafts and all(item.path == tuple(leaf) for item in drafts)


def test_a_cache_that_keeps_the_wrong_node_changes_tokens(monkeypatch, baseline):
    keep = SlotCache.keep_path

    def first_children(cache, rows, starts, path):
        keep(cache, rows, starts, torch.where(path < 0, path, 0))

    monkeypatch.setattr(SlotCache, "keep_path", first_children)
    found = tokens(perfect(tree=tree((-1, -1, 0, 1)), sampling=SamplingSettings(0.0)))[0]
    assert found != baseline


def test_a_mask_that_shows_siblings_changes_tokens(baseline):
    shape = tree(branching(3, 2))
    shape.sees = torch.ones_like(shape.sees).tril()
    assert tokens(perfect(tree=shape, sampling=COLD))[0] != baseline


@pytest.mark.parametrize("draft_sampling", [SAMPLED, GREEDY], ids=lambda item: item.value)
@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("method", [TreeMethod.recursive, TreeMethod.traversal], ids=lambda item: item.value)
def test_a_chain_written_as_a_tree_gives_the_tokens_of_the_chain(kind, method, draft_sampling):
    """Its counts and its bounds: the same random numbers, and states that differ in rounding alone."""
    options = {"draft_sampling": draft_sampling, "num_speculative_tokens": 3, "expected_acceptance": True}
    found, run = tokens(tiny(kind, tree=tree(branching(1, 1, 1)), method=method, **options))
    wanted, chain = tokens(tiny(kind, method=method.traits.on_chains, **options))
    assert found == wanted
    names = ("num_proposed_tokens", "num_draft_tokens", "num_accepted_tokens", "num_output_tokens", "num_positions")
    for record, other in zip(run.requests, chain.requests, strict=True):
        for name in names:
            assert [getattr(item, name) for item in record.rounds] == [getattr(item, name) for item in other.rounds]
        for item, same in zip(record.rounds, other.rounds, strict=True):
            came = item.num_accepted_tokens + 1
            assert (item.position_bounds is None) == (same.position_bounds is None)
            assert (item.position_bounds or ())[:came] == pytest.approx((same.position_bounds or ())[:came], abs=2e-6)


WAYS = [(method, SAMPLED, siblings) for method in TreeMethod for siblings in method.traits.siblings]
WAYS += [(TreeMethod.recursive, GREEDY, DISTINCT), (TreeMethod.traversal, GREEDY, DISTINCT)]


def law_of(method, sampling, siblings, shape=UNEVEN, core=None, count=6000):
    """p-value of the joint law of the first tokens, over two rounds and more with refilled slots."""
    engine = toy_engine(
        TARGET,
        DRAFT,
        method,
        sampling,
        tree=tree(shape, siblings),
        max_new_tokens=NUM_TOKENS,
        num_slots=1500,
        core=core,
    )
    return fit(outputs(engine, toy_requests(count)).values(), TARGET, NUM_TOKENS)


@pytest.mark.parametrize(("method", "sampling", "siblings"), WAYS, ids=lambda item: item.value)
def test_the_law_of_the_first_tokens_is_the_targets(method, sampling, siblings):
    assert law_of(method, sampling, siblings) > FALSE_ALARM


def test_the_same_statistic_rejects_distinct_siblings_verified_as_independent():
    """A broken copy of the engine: what is drawn and what is verified must name the same way."""
    reference = reference_core()

    def verify(target_logits, draft, *others, **options):
        return reference.verify(target_logits, replace(draft, siblings=INDEPENDENT), *others, **options)

    core = replace(reference, verify=verify)
    assert law_of(TreeMethod.recursive, SAMPLED, DISTINCT, branching(2, 2), core) < FALSE_ALARM


def test_tokens_do_not_depend_on_the_number_of_slots():
    results = [
        outputs(
            toy_engine(
                TARGET, DRAFT, TreeMethod.traversal, SAMPLED, tree=tree(UNEVEN), max_new_tokens=9, num_slots=slots
            ),
            toy_requests(20),
        )
        for slots in (1, 7, 20)
    ]
    assert results[0] == results[1] == results[2]


def proposals(engine, path):
    """Draft tokens on a path, by the context that they follow."""
    propose, found = engine.drafter.propose, {}

    def recorded(batch):
        draft = propose(batch)
        for row, length in enumerate(batch.lengths.tolist()):
            found[tuple(batch.token_ids[row, :length].tolist())] = draft.token_ids[row, path].tolist()
        return draft

    engine.drafter.propose = recorded
    tokens(engine)
    return found


@pytest.mark.parametrize("kind", HEADS)
def test_the_best_path_of_a_tree_is_the_chain_that_the_drafter_drafts_alone(kind):
    """Greedy drafts. Would catch nodes that see their siblings in the drafter, or take another node's features."""
    shape = (-1, -1, 1, 0, 3, 2, 4, 5)
    on_tree = proposals(tiny(kind, tree=tree(shape), sampling=COLD, draft_sampling=GREEDY), [0, 3, 4, 6])
    chain = tiny(
        kind,
        method=TreeMethod.recursive.traits.on_chains,
        sampling=COLD,
        draft_sampling=GREEDY,
        num_speculative_tokens=4,
    )
    alone = proposals(chain, [0, 1, 2, 3])
    shared = [context for context in on_tree.keys() & alone.keys() if len(context) > 2]
    assert len(shared) > 30 and all(on_tree[context] == alone[context] for context in shared)
    assert len({tuple(on_tree[context]) for context in shared}) > 5


def records_of(engine, count=60):
    return [item for record in engine.run(toy_requests(count), lambda answer: None).requests for item in record.rounds]


def test_evidence_is_counted_by_depth():
    """With an end of sequence and a length limit; the counts of a round do not depend on what was accepted."""
    engine = toy_engine(
        TARGET, DRAFT, TreeMethod.recursive, SAMPLED, tree=tree(branching(2, 2)), max_new_tokens=9, num_slots=20,
        eos_token_ids=frozenset({2}),
    )  # fmt: skip
    rounds = records_of(engine)
    assert {item.num_positions for item in rounds} == {0, 1, 2}
    assert {item.num_draft_tokens for item in rounds} == {0, 2, 6}
    for item in rounds:
        assert item.num_draft_tokens == (0, 2, 6)[item.num_positions]
        assert item.num_accepted_tokens == min(len(item.path), item.num_positions)
        assert all(child // 2 - 1 == parent for parent, child in zip(item.path, item.path[1:], strict=False))


@pytest.mark.parametrize(("sampling", "reaches"), [(GREEDY, True), (SAMPLED, False)], ids=["one-hot", "distinct"])
def test_no_more_is_accepted_at_a_node_than_its_bound(sampling, reaches):
    """And as much with certain drafts. Would catch the bound of another depth, and walks that did not come there."""
    engine = toy_engine(
        WIDE_TARGET, WIDE_DRAFT, TreeMethod.recursive, sampling, tree=tree(UNEVEN), max_new_tokens=12, num_slots=500,
        expected_acceptance=True,
    )  # fmt: skip
    rounds = records_of(engine, 3000)
    for depth in range(3):
        came = [item for item in rounds if item.num_positions > depth <= item.num_accepted_tokens]
        excess = torch.tensor([(item.num_accepted_tokens > depth) - item.position_bounds[depth] for item in came])
        standard_error = excess.std() / len(came) ** 0.5
        assert len(came) > 500 and standard_error > 0 and excess.mean() < 5 * standard_error
        assert not reaches or excess.mean() > -5 * standard_error


def test_nodes_that_were_not_drawn_are_not_counted():
    """top_k=2 leaves no third child."""
    engine = toy_engine(
        TARGET, DRAFT, TreeMethod.recursive, SAMPLED, tree=tree(branching(3, 1)), max_new_tokens=9, num_slots=20,
        sampling=SamplingSettings(1.0, top_k=2),
    )  # fmt: skip
    rounds = records_of(engine)
    assert {item.num_proposed_tokens for item in rounds} == {0, 4}
    assert any(len(item.path) == 2 for item in rounds) and all(max(item.path, default=0) < 4 for item in rounds)


def test_log_probabilities_are_of_the_rows_that_tokens_were_drawn_from():
    settings = LogprobsSettings(0, is_processed=False)
    engine = toy_engine(
        TARGET,
        DRAFT,
        TreeMethod.traversal,
        SAMPLED,
        tree=tree(UNEVEN),
        max_new_tokens=12,
        num_slots=4,
        logprobs=settings,
    )
    for record in engine.run(toy_requests(10), lambda answer: None).requests:
        before = (0, *record.output_token_ids[:-1])
        wanted = [float(TARGET[pair].log()) for pair in zip(before, record.output_token_ids, strict=True)]
        assert record.logprobs.token == pytest.approx(wanted, abs=1e-5)


def test_an_engine_that_cannot_draft_trees_says_so():
    core = replace(reference_core(), draw_children=None)
    with pytest.raises(ValueError, match="expected a drafter of trees and a core that draws them"):
        toy_engine(
            TARGET, DRAFT, TreeMethod.recursive, SAMPLED, tree=tree(UNEVEN), max_new_tokens=4, num_slots=2, core=core
        )
