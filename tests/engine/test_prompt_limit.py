"""Prompts read in portions beside rounds: how large a portion is, when it holds, and that no token moves."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from harness.config.backend import Local
from harness.config.cell import CellConfig
from harness.config.identity import determinants
from harness.config.usage import without_effect
from harness.engine.graph_runner import MAX_PREFILL_TOKENS, StepSize, step_sizes
from harness.engine.inputs import num_rows
from harness.engine.request import Limits, Request
from harness.engine.row_groups import rows_for, rows_of_group, tokens_of_group
from harness.engine.sequence import Sequence
from harness.engine.step_plan import PrefillRoom, make_plan
from tests.support.tiny_engines import prompts_of, requests_of, tiny_engine
from tests.support.tiny_models import random_target

MAX, GROUP = 400, 4


def sequences(*prompts):
    """(prompt tokens, prompt tokens read) of each; those that are read decode."""
    found = []
    for slot, (size, read) in enumerate(prompts):
        sequence = Sequence(Request(str(slot), "toy", 0, 0, slot, (0,) * size), slot, 0.0)
        sequence.num_prefilled_tokens = read
        found.append(sequence)
    return found


def chunks(prompts, limit, max_tokens=MAX):
    room = PrefillRoom(max_tokens, GROUP, limit)
    plan = make_plan(sequences(*prompts), Limits(10, frozenset()), lambda depth: room)
    return [(chunk.sequence.slot, chunk.start, chunk.stop) for chunk in plan.chunks]


DECODING = [(2, 2)] * 9
LONG = [(30, 0)] * 12


def test_prompts_that_wait_share_a_portion_in_their_order():
    waiting = [*DECODING, (9, 4), (30, 0), (5, 0)]
    assert chunks(waiting, 16) == [(9, 4, 9), (10, 0, 8)]
    assert chunks(waiting, None) == [(9, 4, 9), (10, 0, 30), (11, 0, 5)]


@pytest.mark.parametrize(
    ("limit", "num_tokens"),
    [(1, 4), (4, 4), (7, 4), (13, 12), (MAX + 1, 30)],
    ids=["less than a group", "one group", "not two groups", "three groups", "more than a step"],
)
def test_a_limit_counts_whole_groups_of_rows_and_at_least_one(limit, num_tokens):
    assert chunks([*DECODING, (30, 0)], limit) == [(9, 0, num_tokens)]
    assert chunks([*DECODING, (30, 0)], limit, max_tokens=4) == [(9, 0, 4)], "a step has no more room than without it"


@pytest.mark.parametrize("num_decoding", [1, 9])
def test_a_limit_holds_however_much_waits(num_decoding):
    """Would catch a limit that is lifted where many wait, or where what waits is long."""
    assert chunks([*DECODING[:num_decoding], *LONG], 8) == [(num_decoding, 0, 8)]


@pytest.mark.parametrize("num_decoding", [1, 9])
def test_without_a_limit_everything_that_fits_is_read_beside_rounds(num_decoding):
    """Would catch a default that holds prompts back."""
    found = chunks([*DECODING[:num_decoding], *LONG], None)
    assert found == [(num_decoding + row, 0, 30) for row in range(12)]


def test_nothing_is_limited_while_no_request_decodes():
    assert chunks([(9, 4), (30, 0)], 8) == [(0, 4, 9), (1, 0, 30)]
    finished = sequences((9, 9), (30, 0))
    finished[0].token_ids += [1] * 10
    plan = make_plan(finished, Limits(10, frozenset()), lambda depth: PrefillRoom(MAX, GROUP, 8))
    assert not plan.decoding and plan.chunks[0].stop == 30


def test_a_full_portion_has_a_size_of_its_own():
    sizes = step_sizes(16, 5, max_prefill_tokens_with_decodes=36)
    assert StepSize(16, 6, 5) in sizes and StepSize(16, 6, 5) not in step_sizes(16, 5)
    assert all(before < after for before, after in pairwise(sizes)), "sizes are tried from the smallest"
    assert step_sizes(16, 5, 96) == step_sizes(16, 5), "one that is there is not captured twice"


NUM_SLOTS, NUM_TOKENS, CAPACITY = 6, 2, 63
PROMPTS = (3, 31, 4, 17, 5, 2, 25, 1, 9, 33, 6)


def engine(kind, limit, **options):
    sizes = {"num_slots": NUM_SLOTS, "capacity": CAPACITY, "num_speculative_tokens": NUM_TOKENS, "max_new_tokens": 14}
    options |= {"eos_token_ids": frozenset(range(6)), "prompt_tokens_beside_rounds": limit}
    return tiny_engine(kind, target=random_target(seed=3), **sizes, **options)


def played(made):
    """Tokens and counts of every request, and the (decoding requests, prompt rows) of every step."""
    steps, launch = [], made._runner.launch

    def watched(plan):
        steps.append((len(plan.decoding), num_rows(plan, made.settings.num_speculative_tokens)))
        return launch(plan)

    made._runner.launch = watched
    records = made.run(requests_of(prompts_of(PROMPTS)), lambda record: None).requests
    counts = {
        record.prompt_id: (record.output_token_ids, [item.num_accepted_tokens for item in record.rounds])
        for record in records
    }
    return counts, steps


@pytest.mark.parametrize("kind", ["none", "eagle", "mtp", "draft_model"])
def test_tokens_do_not_depend_on_the_limit(kind):
    """Prompts shorter and longer than it, one group of rows at a time up to all at once, launched ahead or not.

    Would catch a portion whose later part does not see the earlier one, and a drafter that starts amid a prompt.
    """
    width = 1 if kind == "none" else NUM_TOKENS + 1
    expected, _ = played(engine(kind, None))
    for limit, overlaps in ((1, False), (16, True), (31, True), (2048, False), (None, True)):
        found, steps = played(engine(kind, limit, graphs=True, overlaps=overlaps))
        assert found == expected, f"limit {limit}"
        beside = [rows for num_decoding, rows in steps if num_decoding]
        if limit is not None:
            assert max(beside) <= max(1, limit // tokens_of_group(width)) * rows_of_group(width)
        assert any(beside) and any(rows for num_decoding, rows in steps if not num_decoding)


@pytest.mark.parametrize(
    ("limit", "num_rows_of_portion"),
    [(1, 5), (44, 10), (75, 25), (10**6, rows_for(MAX_PREFILL_TOKENS, NUM_TOKENS + 1))],
    ids=["less than a group", "not three groups", "five groups", "more than a step"],
)
def test_the_rows_of_a_portion_are_a_size(limit, num_rows_of_portion):
    free, limited = (set(engine("eagle", each, graphs=True)._runner.sizes) for each in (None, limit))
    assert limited == free | {StepSize(NUM_SLOTS, num_rows_of_portion, NUM_TOKENS)}


def test_every_step_with_a_portion_is_of_a_size_that_is_captured_before():
    made = engine("eagle", 75, graphs=True)
    played(made)
    assert (
        set(made._runner._steps) == set(made._runner.sizes)
        and StepSize(NUM_SLOTS, 25, NUM_TOKENS) in made._runner._steps
    )


def cell(**backend):
    return CellConfig(backend=Local(**backend))


def test_a_cell_whose_prompts_have_no_rows_ignores_the_limit():
    key = "backend.prompt_tokens_beside_rounds"
    limited, free = (cell(graphs=False, prompt_tokens_beside_rounds=limit) for limit in (64, None))
    assert determinants(limited) == determinants(free)
    found = without_effect([key], [limited])
    assert found is not None and found[0] == key and "backend.graphs=true" in found[1]
    assert without_effect([key], [limited, cell(prompt_tokens_beside_rounds=64)]) is None


def test_a_limit_makes_another_cell():
    limited, free = (cell(graphs=True, prompt_tokens_beside_rounds=limit) for limit in (64, None))
    assert determinants(limited) != determinants(free)
    assert determinants(replace(limited, backend=replace(limited.backend, device="cpu"))) != determinants(free)


def test_a_limit_of_nothing_is_refused():
    with pytest.raises(ValueError, match=r"backend.prompt_tokens_beside_rounds: expected 1 or more, or null, found 0"):
        Local(prompt_tokens_beside_rounds=0)
