"""Lookahead decoding: window and pool against a computation token by token, the target's law, the baseline's tokens."""

from __future__ import annotations

import pytest
import torch

from harness.config.cell import CellConfig, InvalidCombinationError
from harness.config.drafter import drafter_of
from harness.config.drafting import DraftingConfig
from harness.config.sampling import SamplingSettings
from harness.drafters.dynamic_tree import DynamicTreeShape
from harness.drafters.lookahead import Lookahead
from harness.drafters.lookahead_run import STRIDE, LookaheadDrafter, Window
from harness.engine.engine import Engine
from harness.engine.request import Limits
from harness.engine.settings import EngineSettings, draft_slack
from harness.models.target import TargetModel
from kernels.contract import DraftSampling, Verification, VerificationMethod
from kernels.methods import TreeMethod
from tests.support.draft_paths import paths_of
from tests.support.tiny_engines import tiny_engine, tiny_requests
from tests.support.tiny_models import random_target
from tests.support.toy_markov import exact_law, fits, toy_engine, toy_requests, transitions

WIDTH, NGRAM, GUESSES, POOL = 4, 3, 2, 6
SETTINGS = Lookahead(window=WIDTH, ngram=NGRAM, guesses=GUESSES, pool=POOL)
CPU = torch.device("cpu")


def lookahead(num_slots, settings=SETTINGS):
    tree = DynamicTreeShape(settings.tree)
    window = Window(settings.window, settings.ngram, settings.guesses, settings.pool)
    return LookaheadDrafter(window, num_slots, tree, CPU), tree


def engine_of(target: TargetModel, num_slots=2, temperature=0.0, graphs=False, max_new_tokens=24) -> Engine:
    drafter, tree = lookahead(num_slots)
    settings = EngineSettings(
        num_slots=num_slots,
        capacity=12 + max_new_tokens + draft_slack(tree.num_nodes, SETTINGS.tree, graphs),
        num_speculative_tokens=tree.num_nodes,
        sampling=SamplingSettings(temperature),
        verification=Verification(TreeMethod.recursive),
        limits=Limits(max_new_tokens, frozenset()),
        drafts_trees=True,
        graphs=graphs,
    )
    return Engine(target, drafter, settings)


class SlowLookahead:
    """One request, with lists, and whole sequences through the target."""

    def __init__(self, target: TargetModel, text: list[int]) -> None:
        self.target, self.text, self.age = target, text, 0
        self.places: list[tuple[int, ...] | None] = []
        fillers = self.fillers((NGRAM - 1) * WIDTH)
        self.levels = [fillers[level * WIDTH : (level + 1) * WIDTH] for level in range(NGRAM - 1)]

    def fillers(self, number: int) -> list[int]:
        size = len(self.text)
        return [self.text[(size + place + 1) * STRIDE % size] for place in range(number)]

    def paths(self) -> list[list[int]]:
        """Guesses, the latest first, then the columns of the window."""
        found = [list(item[1:]) for item in reversed(self.places) if item is not None and item[0] == self.text[-1]]
        return found[:GUESSES] + [self.column(index) for index in range(WIDTH)]

    def column(self, index: int) -> list[int]:
        return self.levels[0][: index + 1] + [level[index] for level in self.levels[1:]]

    def proposal(self) -> list[tuple[int, ...]]:
        """The nodes of the tree as paths, each once."""
        return list(dict.fromkeys(tuple(path[:end]) for path in self.paths() for end in range(1, len(path) + 1)))

    def advance(self, text: list[int]) -> None:
        """A round later, with what the target makes of the window."""
        found = []
        for index in range(WIDTH):
            tokens = torch.tensor([self.text + self.column(index)])
            positions = torch.arange(tokens.shape[1])[None]
            found.append(int(self.target.logits(self.target.forward(tokens, positions, None).hidden[:, -1]).argmax()))
        iterated = [*self.levels, found]
        if self.age >= NGRAM - 1:
            new = [tuple(level[index] for level in iterated) for index in range(WIDTH)]
            # a place that is taken out stays empty until it is its turn
            self.places = ([None if item in new else item for item in self.places] + new)[-POOL:]
        num_new = len(text) - len(self.text) - 1
        fillers = self.fillers(WIDTH)
        self.levels = [[*level[num_new:], *fillers[max(0, WIDTH - num_new) :]] for level in iterated[1:]]
        self.text, self.age = text, self.age + 1


@torch.inference_mode()
def test_trees_are_those_of_a_computation_token_by_token():
    """More requests than slots, sampled tokens. Would catch a window that does not move with what was accepted, a
    column of another position, n-grams of another request, and rows of another node."""
    target = random_target(seed=3, num_hidden_layers=2)
    engine, seen = engine_of(target, temperature=0.5), []
    propose = engine.drafter.propose

    def spy(batch):
        draft = propose(batch)
        for row, length in enumerate(batch.lengths.tolist()):
            if length > 1:
                tree = (draft.token_ids[row].tolist(), draft.parents[row].tolist(), int(draft.num_draft_tokens[row]))
                seen.append((batch.token_ids[row, :length].tolist(), paths_of(*tree)))
        return draft

    engine.drafter.propose = spy
    engine.run(tiny_requests(4, 7), lambda _: None)
    slow: dict[tuple[int, ...], SlowLookahead] = {}
    num_guessed = 0
    for text, paths in seen:
        request = tuple(text[:7])
        if request in slow:
            slow[request].advance(text)
        else:
            slow[request] = SlowLookahead(target, text)
        num_guessed += len(slow[request].paths()) > WIDTH
        assert paths == slow[request].proposal(), f"after {len(text)} tokens"
    assert len(slow) == 4 and len(seen) > 30 and num_guessed > 5


@pytest.mark.parametrize("graphs", [False, True], ids=["operation by operation", "steps of fixed sizes"])
def test_greedy_tokens_are_the_baselines_in_fewer_rounds(graphs):
    target = random_target(seed=3, num_hidden_layers=2)
    found = engine_of(target, graphs=graphs, max_new_tokens=40).run(tiny_requests(5, 6), lambda _: None).requests
    plain = tiny_engine("none", target=target, sampling=SamplingSettings(0.0), capacity=60, max_new_tokens=40)
    baseline = plain.run(tiny_requests(5, 6), lambda _: None).requests
    tokens = [{each.prompt_id: each.output_token_ids for each in run} for run in (found, baseline)]
    assert tokens[0] == tokens[1]
    rounds = [sum(len(each.rounds) for each in run) for run in (found, baseline)]
    assert rounds[0] < 0.8 * rounds[1]


@pytest.mark.parametrize("method", [TreeMethod.recursive, TreeMethod.traversal], ids=lambda item: item.value)
def test_law_of_the_first_tokens_is_the_targets(method):
    """Would catch a window or pool that follows from what a round drew without emitting it."""
    target, drafter, tree = transitions(3, seed=12), *lookahead(400)
    sizes = {"num_speculative_tokens": tree.num_nodes, "max_new_tokens": 4, "num_slots": 400}
    engine = toy_engine(target, target, method, DraftSampling.greedy, drafter=drafter, tree=tree, **sizes)
    found = engine.run(toy_requests(3000), lambda record: None).requests
    assert fits((each.output_token_ids for each in found), exact_law(target, 4)) > 1e-6
    rounds = [item for each in found for item in each.rounds]
    assert sum(item.num_accepted_tokens for item in rounds) > len(found) and len(rounds) > 1.5 * len(found)


def test_another_tree_than_that_of_its_sizes_is_refused_with_the_one_that_it_is():
    assert Lookahead().tree.name == "dynamic:20-6-10"
    for tree in (None, "dynamic:8-4-3"):
        with pytest.raises(
            InvalidCombinationError, match=r"has the tree dynamic:12-5-6, .*use drafting.tree=dynamic:12"
        ):
            CellConfig(
                drafter=SETTINGS,
                drafting=DraftingConfig(tree=tree),
                verification=Verification(TreeMethod.recursive if tree else VerificationMethod.strict),
            )
    with pytest.raises(ValueError, match=r"drafter.pool: expected 5 or more \(drafter.window, drafter.guesses\)"):
        drafter_of("lookahead", pool=4)
