"""Trees in steps of fixed sizes, CUDA graphs on a GPU, give the tokens of steps that run operation by operation."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from harness.config.tree import DynamicTree
from harness.drafters.draft_tree import DraftTree
from harness.drafters.dynamic_tree import DynamicTreeShape
from harness.engine import tree_step
from harness.engine.graph_runner import GraphRunner
from harness.engine.settings import draft_slack
from kernels.contract import DraftSampling, SiblingDraws
from kernels.methods import TreeMethod
from tests.engine.test_engine_trees import COLD, HEADS, SHAPES, tiny, tokens
from tests.support.tiny_engines import tiny_engine

UNEVEN = DraftTree(SHAPES["uneven"], SiblingDraws.distinct)
DYNAMIC = DynamicTreeShape(DynamicTree(6, 3, 3))
CERTAIN = {"tree": DYNAMIC, "draft_sampling": DraftSampling.greedy}
WAYS = [pytest.param(kind, {"tree": UNEVEN}, id=f"{kind}-fixed") for kind in HEADS]
WAYS += [pytest.param(kind, CERTAIN, id=f"{kind}-dynamic") for kind in (*HEADS, "ngram")]


@pytest.mark.parametrize(("kind", "options"), WAYS)
@pytest.mark.parametrize("method", [TreeMethod.recursive, TreeMethod.traversal], ids=lambda item: item.value)
def test_tokens_and_counts_do_not_depend_on_how_steps_are_run(kind, options, method):
    """Prompts are read beside the rounds of others, in several rows. Would catch rows of prompts that see the tokens
    after them or take the positions of nodes, an accepted path that is moved in another slot, and a prompt's end that
    is looked for among the nodes."""
    (found, run), (wanted, plain) = (tokens(tiny(kind, method=method, graphs=way, **options)) for way in (True, False))
    assert found == wanted
    assert [[item.path for item in record.rounds] for record in run.requests] == [
        [item.path for item in record.rounds] for record in plain.requests
    ]


@pytest.mark.parametrize("kind", ["eagle3", "draft_model"])
def test_a_dynamic_tree_is_chosen_from_more_nodes_than_it_has(kind):
    """Would catch room for the nodes of a tree alone where its drafter reads more of them, in slots as long as
    `draft_slack` makes them."""
    bounds = DynamicTree(4, 4, 4)
    assert bounds.num_read > bounds.num_nodes
    options = {"tree": DynamicTreeShape(bounds), "draft_sampling": DraftSampling.greedy}
    options["capacity"] = 9 + 16 + draft_slack(bounds.num_nodes, bounds)
    found = [tokens(tiny(kind, graphs=way, **options))[0] for way in (True, False)]
    assert found[0] == found[1]


def test_steps_may_be_launched_ahead():
    found = [tokens(tiny("eagle3", tree=UNEVEN, graphs=True, overlaps=way))[0] for way in (True, False)]
    assert found[0] == found[1]


@pytest.mark.parametrize("broken", ["_chains", "_apart"])
def test_a_step_that_forgets_what_rows_of_prompts_are_changes_tokens(broken, monkeypatch):
    """Broken copies: rows of prompts whose tokens see each other whichever comes first, and rows of rounds that are
    taken for those of the next slot."""
    apart, chains = tree_step._apart, tree_step._chains

    def turned(parts, outputs, num_rows):
        (rounds, *prompts), outputs = apart(parts, outputs, num_rows)
        return [rounds._replace(rows=rounds.rows.roll(1)), *prompts], outputs

    monkeypatch.setattr(tree_step, broken, {"_chains": lambda ids: chains(ids) | True, "_apart": turned}[broken])
    baseline = tokens(tiny_engine("none", capacity=90, max_new_tokens=16, sampling=COLD))[0]
    assert tokens(tiny("draft_model", tree=UNEVEN, sampling=COLD, graphs=True))[0] != baseline


READS_ON_THE_HOST = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal", "repeat_interleave.Tensor")


OF_PYTHON_VALUES = "lift_fresh"
"""What a tensor made of Python numbers or lists passes: on a GPU a copy from the host."""


class NothingIsRead(TorchDispatchMode):
    """Raises where an operation needs a value on the host, has a result whose size does, or brings values from it."""

    is_on = True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func).removeprefix("aten.")
        indices = args[1] if name.startswith(("index.", "index_put")) else ()
        masks = any(item is not None and item.dtype in (torch.bool, torch.uint8) for item in indices)
        assert not (self.is_on and (masks or name.startswith(READS_ON_THE_HOST))), f"{name} reads on the host"
        assert not (self.is_on and name.startswith(OF_PYTHON_VALUES)), "a tensor is made of values of the host"
        return func(*args, **(kwargs or {}))

    @contextmanager
    def off(self):
        before, self.is_on = self.is_on, False
        yield
        self.is_on = before


@pytest.mark.parametrize(("kind", "options"), WAYS)
def test_a_step_reads_nothing_on_the_host(kind, options, monkeypatch):
    """Which a CUDA graph cannot do. The core's own functions are the reference's here, and are left out."""
    mode = NothingIsRead()
    engine = tiny(kind, graphs=True, **options)

    def apart(function):
        def call(*arguments, **named):
            with mode.off():
                return function(*arguments, **named)

        return call

    step = engine._runner.step
    functions = {name: apart(value) for name, value in vars(step.core).items() if callable(value)}
    object.__setattr__(step, "core", replace(step.core, **functions))
    run = GraphRunner._run

    def watched(runner, given):
        with mode:
            return run(runner, given)

    monkeypatch.setattr(GraphRunner, "_run", watched)
    assert any(len(record.rounds) > 2 for record in tokens(engine, count=4)[1].requests)


@pytest.mark.parametrize(
    "operation",
    [
        torch.Tensor.item,
        torch.Tensor.nonzero,
        lambda given: given[given > 0],
        lambda given: torch.tensor([0, 1], device=given.device),
        lambda given: torch.as_tensor([0, 1], device=given.device),
        lambda given: given.new_tensor(1.0),
        lambda given: given[[0, 0]],
    ],
    ids=["item", "nonzero", "mask", "tensor of a list", "as_tensor", "new_tensor", "index by a list"],
)
def test_what_a_graph_cannot_do_is_seen(operation):
    """Would catch a watch that misses it in the test above."""
    given = torch.ones(1)
    with pytest.raises(AssertionError, match=r"reads on the host|values of the host"), NothingIsRead():
        operation(given)
