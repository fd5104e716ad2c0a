"""What a step takes in: sequences, parts of prompts, and the sizes that steps are captured in."""

from harness.engine.graph_runner import MAX_PREFILL_TOKENS, StepSize, step_sizes
from harness.engine.request import Limits, Request
from harness.engine.sequence import Sequence
from harness.engine.step_plan import PrefillRoom, make_plan


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
        assert rows == sorted(rows) and rows[-1] * (depth + 1) >= MAX_PREFILL_TOKENS > (rows[-1] - 1) * (depth + 1)
