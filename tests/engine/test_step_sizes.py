"""What a step does by its plan, and the sizes of which one holds it."""

from random import Random

import pytest

from harness.engine.depth import DepthByBatch
from harness.engine.graph_runner import MAX_PREFILL_TOKENS, GraphRunner, StepSize, step_sizes
from harness.engine.inputs import in_rows
from harness.engine.planner import Planner
from harness.engine.request import Limits, Request
from harness.engine.row_groups import rows_of_group
from harness.engine.sequence import Sequence
from harness.engine.step_plan import PrefillRoom, make_plan
from tests.support.tiny_engines import tiny_engine


def running(*fields):
    found = []
    for slot, (prompt, read, output, under_way) in enumerate(fields):
        sequence = Sequence(Request(str(slot), "toy", 0, 0, slot, (0,) * prompt), slot, 0.0)
        sequence.num_prefilled_tokens = read
        sequence.token_ids += [1] * output
        for _ in range(under_way):
            sequence.launch(4)
        found.append(sequence)
    return found


def test_a_sequence_that_will_have_reached_its_length_is_left_out():
    plan = make_plan(
        running((2, 2, 9, 1), (2, 2, 9, 0), (2, 2, 8, 1)), Limits(10, frozenset()), lambda depth: PrefillRoom(64, 4)
    )
    assert [sequence.slot for sequence in plan.decoding] == [1, 2] and not plan.chunks
    assert make_plan(running((2, 2, 9, 1)), Limits(10, frozenset()), lambda depth: PrefillRoom(64, 4)) is None


def test_prompts_are_cut_where_the_step_is_full():
    plan = make_plan(
        running((10, 0, 0, 0), (9, 4, 0, 0), (5, 0, 0, 0)), Limits(10, frozenset()), lambda depth: PrefillRoom(16, 4)
    )
    assert [(chunk.start, chunk.stop, chunk.ends_prompt) for chunk in plan.chunks] == [(0, 10, True), (4, 8, False)]
    assert [sequence.slot for sequence in plan.deciding] == [0]


def test_sizes_hold_every_plan_and_are_few():
    sizes = step_sizes(12, 19)
    assert sizes[:5] == [StepSize(each, 0, 19) for each in (1, 2, 4, 8, 12)]
    assert sizes[5:] == [StepSize(12, each, 19) for each in (8, 12, 16, 24, 32, 48, 64, 83, 103)]
    assert [size.num_prompt_rows for size in step_sizes(12, 0)[5:]] == [
        16 * groups for groups in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
    ]
    few = step_sizes(12, 3, max_prompt_rows=12)
    assert [size.num_prompt_rows for size in few[5:]] == [8, 12], "a prompt has one row of a recurrent model's step"
    assert step_sizes(1, MAX_PREFILL_TOKENS) == [StepSize(1, rows, MAX_PREFILL_TOKENS) for rows in (0, 1)]


def test_sizes_of_every_depth_hold_a_full_step():
    """Would catch rows of a depth that are fewer than its narrower rows need."""
    depths = {1: {4}, 2: {2, 4}, 4: {0, 2, 4}}
    sizes = step_sizes(4, 4, None, depths.__getitem__)
    assert [size for size in sizes if not size.num_prompt_rows] == [
        StepSize(slots, 0, depth) for slots in depths for depth in sorted(depths[slots])
    ]
    for depth in (0, 2, 4):
        rows = [size.num_prompt_rows for size in sizes if size.num_prompt_rows and size.depth == depth]
        group = rows_of_group(depth + 1)
        assert rows == sorted(rows) and not any(each % group for each in rows)
        assert rows[-1] * (depth + 1) >= MAX_PREFILL_TOKENS > (rows[-1] - group) * (depth + 1)


def test_a_planner_does_not_capture_every_size_of_every_depth():
    """Would catch halfway sizes for each depth, 166 graphs."""
    planner = Planner(8)
    assert len(step_sizes(16, 8)) == 16
    assert len(step_sizes(16, 8, None, planner.choices)) == 9 * (5 + 5) == 90
    assert len(step_sizes(16, 8, 100, planner.choices)) == 9 * (5 + 6)


def test_a_table_of_few_depths_reads_prompts_in_steps_of_one_depth():
    """Would catch a short prompt of a table that is padded to 128 tokens, where one depth pads it to fewer."""
    table = DepthByBatch(((1, 4), (3, 2)))
    assert {size for depth in (2, 4) for size in step_sizes(4, depth) if size.num_prompt_rows} == {
        size for size in step_sizes(4, 4, None, table.choices) if size.num_prompt_rows
    }


@pytest.mark.parametrize("limit", [None, 1, 100, 9999])
def test_no_step_of_a_chosen_depth_is_larger_than_its_graph(limit):
    """Full steps, steps that the limit fills, and short prompts, each of which fills its last row with nothing."""
    generator, choices = Random(5), Planner(8).choices
    engine = tiny_engine("eagle", num_speculative_tokens=8, graphs=True, depth=Planner(8))
    step = engine.step
    runner = GraphRunner(step, 16, limit, choices)
    for _ in range(400):
        depth = generator.choice([None, *choices(16)])
        longest = generator.choice([3, 40, 3000])
        prompts = [(generator.randint(1, longest), 0, 0, 0) for _ in range(generator.randint(1, 12))]
        decoding = [] if depth is None else [(2, 2, 1, 0)] * generator.randint(1, 4)
        choose = dict.fromkeys(range(5), depth).__getitem__
        plan = make_plan(running(*decoding, *prompts), Limits(10, frozenset()), runner.prefill_room, choose)
        size = runner._size(plan)
        assert plan.depth == depth and plan.chunks
        assert size.depth == (8 if depth is None else depth) and size.num_slots >= plan.num_slots
        in_rows(plan, size.depth, size.num_slots, size.num_prompt_rows, step.state.spare)
