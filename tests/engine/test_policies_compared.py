"""Policies are compared on equal work.

A grammar state adds nothing to a step before the end of reasoning, and policy `none` adds nothing while the clock runs.
"""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from harness.engine.constrained_graph_runner import ConstrainedGraphRunner
from harness.engine.constraint.parsers.markers import OneToken
from harness.engine.graph_runner import StepSize
from harness.engine.row_groups import rows_for
from kernels.contract import DraftSampling, VerificationMethod
from kernels.core import reference_core
from tests.support.tiny_engines import KINDS, NUM_SLOTS, tiny_engine
from tests.support.toy_markov import toy_engine, toy_requests, transitions

MARKER = 3


class Operations(TorchDispatchMode):
    """Counts operations by name, views and memory included; what runs within `as_one` is one."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()
        self.is_counting = True

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.counts[str(function)] += self.is_counting
        return function(*args, **(kwargs or {}))

    def as_one(self, operation):
        def run(**arguments):
            self.counts[operation.__name__] += 1
            self.is_counting = False
            try:
                return operation(**arguments)
            finally:
                self.is_counting = True

        return run


def operations(kind, num_prompt_tokens, constrained):
    """Of the step that is captured."""
    engine = tiny_engine(kind, graphs=True, constrained=constrained)
    runner = engine._runner
    assert isinstance(runner, ConstrainedGraphRunner) is constrained
    found = Operations()
    # one kernel on a GPU, whichever rows it defers
    runner.step = replace(runner.step, core=replace(engine.core, defer=found.as_one(reference_core().defer)))
    depth = runner.step.num_speculative_tokens
    size = StepSize(NUM_SLOTS, rows_for(num_prompt_tokens, depth + 1), depth)
    _, given = runner._new_inputs(size)
    with torch.inference_mode(), found:
        runner._run(given)
    return found.counts


@pytest.mark.parametrize("num_prompt_tokens", [0, 5], ids=["rounds alone", "beside prompts"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_guarded_step_in_front_of_the_boundary_is_the_plain_one(kind, num_prompt_tokens):
    """Would catch an operation that only one of the two has, which a table would show as the price of a policy."""
    plain = operations(kind, num_prompt_tokens, constrained=False)
    # what makes it the same is one operation in the place of several, not none
    assert plain["defer"] == 1 and plain.total() > 100
    assert operations(kind, num_prompt_tokens, constrained=True) == plain


class Asked(OneToken):
    """Counts how often it is asked."""

    def __init__(self, marker_id):
        super().__init__(marker_id)
        self.num_asked = 0

    def start(self):
        self.num_asked += 1
        return super().start()

    def end_index_in(self, delta, state):
        self.num_asked += 1
        return super().end_index_in(delta, state)


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
def test_where_nothing_guards_a_request_its_parser_is_asked_when_all_have_ended(graphs):
    """Would catch a parser that runs over a whole request whenever one ends, while the other requests' rounds wait."""
    options = {"num_speculative_tokens": 3, "max_new_tokens": 20, "num_slots": 4}
    target, draft = transitions(4, 12), transitions(4, 19)
    engine = toy_engine(
        target,
        draft,
        VerificationMethod.probabilistic,
        DraftSampling.sampled,
        graphs=graphs,
        overlaps=graphs,
        **options,
    )
    parsers = [Asked(MARKER) for _ in range(9)]
    requests = [replace(item, parser=parser) for item, parser in zip(toy_requests(9), parsers, strict=True)]
    while_running = []

    def follow_up(record):
        while_running.append(sum(parser.num_asked for parser in parsers))

    found = engine.run(requests, follow_up).requests
    assert while_running == [0] * 9 and all(parser.num_asked for parser in parsers)
    for record in found:
        # and nothing is lost: reasoning ends where the output has its first marker
        ids = record.output_token_ids
        assert record.num_reasoning_tokens == (ids.index(MARKER) + 1 if MARKER in ids else None)
        assert all(item.num_free_tokens is not None for item in record.rounds)
    ended = [record for record in found if record.num_reasoning_tokens is not None]
    assert ended and any(item.num_free_tokens == 0 < item.num_proposed_tokens for r in ended for item in r.rounds)
