"""Rows of prompts that attention reads together: the tokens stay, and keys are read seldom."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from random import Random

import pytest
import torch

from harness.config.sampling import SamplingSettings
from harness.config.tree import DynamicTree, branching
from harness.drafters.draft_tree import DraftTree
from harness.drafters.dynamic_tree import DynamicTreeShape
from harness.engine.depth import DepthByBatch
from harness.engine.inputs import fields_and_rows, in_rows, num_rows
from harness.engine.request import Request
from harness.engine.row_groups import rows_of_group, tokens_of_group
from harness.engine.sequence import Sequence
from harness.engine.settings import draft_slack
from harness.engine.step_plan import Chunk, StepPlan
from harness.models.fused import layer
from harness.models.fused.operations import named_operations
from harness.models.fused.row_groups import GroupedRows
from kernels.contract import DraftSampling, SiblingDraws
from kernels.methods import TreeMethod
from tests.support.tiny_engines import NUM_SLOTS, tiny_engine, tiny_requests
from tests.support.tiny_models import VOCAB_SIZE

LENGTHS = (1, 15, 16, 17, 33, 48)
"""Around multiples of a group's tokens, which are 12 to 16 at up to 8 tokens a row."""
NUM_NEW, NUM_ADDED, NUM_LAYERS = 6, 9, 5
LONGEST = max(LENGTHS) + NUM_NEW + NUM_ADDED
HEADS = ("eagle", "eagle3", "mtp", "peagle", "dflash", "draft_model")
DEPTHS = {
    "eagle": (1, 4, 7),
    "eagle3": (2, 5),
    "mtp": (3, 8),
    "peagle": (3, 6),
    "dflash": (2, 5),
    "draft_model": (2, 7),
}
WAYS = [("none", 0), *((kind, num_drafts) for kind in HEADS for num_drafts in DEPTHS[kind])]
COLD = SamplingSettings(0.0)
READ = {"fused": True, "graphs": True}


def engine(kind, num_drafts, **options):
    """Whose slots are as long as they must be."""
    capacity = LONGEST + NUM_NEW + draft_slack(num_drafts, graphs=True)
    settings = {"num_speculative_tokens": num_drafts, "capacity": capacity, "max_new_tokens": NUM_NEW}
    return tiny_engine(kind, **settings | options)


def prompt(row, num_tokens):
    return tuple((7 * row + 3 * place + place * place) % VOCAB_SIZE for place in range(num_tokens))


def played(made):
    """Tokens and accepted drafts of conversations of two turns each, more of them than slots."""
    asked = [Request(str(row), "toy", 0, 0, row, prompt(row, size)) for row, size in enumerate(LENGTHS)]

    def follow_up(answer):
        if answer.turn:
            return None
        before = asked[int(answer.prompt_id)]
        return replace(before, turn=1, token_ids=(*before.token_ids, *answer.output_token_ids, *prompt(3, NUM_ADDED)))

    records = made.run(asked, follow_up).requests
    assert len(records) == 2 * len(LENGTHS)
    return {
        (item.prompt_id, item.turn): (item.output_token_ids, [each.num_accepted_tokens for each in item.rounds])
        for item in records
    }


@cache
def in_one_piece(kind, num_drafts):
    return played(engine(kind, num_drafts))


@pytest.mark.parametrize("limit", [None, 1, 40])
@pytest.mark.parametrize(("kind", "num_drafts"), WAYS)
def test_tokens_and_counts_are_those_of_prompts_in_one_piece(kind, num_drafts, limit):
    """Drafts are drawn, so that what a head has read of a prompt shows. Would catch a group that sees tokens after its
    own or another slot, and a portion of a prompt behind which something was written."""
    found = played(engine(kind, num_drafts, prompt_tokens_beside_rounds=limit, **READ))
    assert found == in_one_piece(kind, num_drafts)


@cache
def baseline():
    return {key: tokens for key, (tokens, _) in played(engine("none", 0, sampling=COLD)).items()}


@pytest.mark.parametrize("num_drafts", range(9))
def test_greedy_tokens_are_those_of_a_baseline_that_reads_prompts_in_one_piece(num_drafts):
    for kind in (HEADS[num_drafts % 5], HEADS[(num_drafts + 2) % 5]) if num_drafts else ("none",):
        found = played(engine(kind, num_drafts, sampling=COLD, **READ))
        assert {key: tokens for key, (tokens, _) in found.items()} == baseline(), kind


TREES = {
    "fixed": {"tree": DraftTree(branching(2, 2), SiblingDraws.distinct)},
    "dynamic": {"tree": DynamicTreeShape(DynamicTree(6, 3, 3)), "draft_sampling": DraftSampling.greedy},
}


@pytest.mark.parametrize("shape", TREES)
@pytest.mark.parametrize("kind", ["eagle", "eagle3", "mtp", "draft_model"])
def test_prompts_beside_trees_are_chains(kind, shape):
    """Two rows of 7 tokens a group. Would catch masks of other rows, and nodes that prompts of a group would see."""
    options = TREES[shape] | {"method": TreeMethod.recursive, "capacity": LONGEST + NUM_NEW + 30}
    assert played(engine(kind, 6, **options, **READ)) == played(engine(kind, 6, **options))


def test_prompts_of_every_depth_are_read_in_groups_of_their_own():
    """The depth is 4, 2 or 0 with 1, 2 or 3 requests that decode, and 4 where none does."""
    options = {"max_new_tokens": 12, "capacity": 60}
    found = []
    for ways in ({}, READ):
        made = engine("eagle", 4, depth=DepthByBatch(((1, 4), (2, 2), (3, 0))), **options, **ways)
        run = made.run(tiny_requests(7, 21), lambda answer: None)
        found.append({item.prompt_id: item.output_token_ids for item in run.requests})
    assert found[0] == found[1]


@pytest.fixture
def calls(monkeypatch):
    """(rows, tokens of each, keys that are read) of every call of fused attention."""
    found, operations = [], named_operations("reference")

    def counted(queries, keys, values, slots, starts, *others, **named):
        found.append((*queries.shape[:2], int((starts + queries.shape[1]).sum())))
        return operations.slot_attention(queries, keys, values, slots, starts, *others, **named)

    monkeypatch.setattr(layer, "operations_for", lambda device: replace(operations, slot_attention=counted))
    return found


def read_prompt(kind, num_drafts, num_tokens):
    """Run a step that reads a prompt, and nothing else."""
    made = engine(kind, num_drafts, capacity=num_tokens + 30, max_new_tokens=1, **READ)
    made.run([Request("0", "toy", 0, 0, 0, prompt(0, num_tokens))], lambda answer: None)


@pytest.mark.parametrize(("num_drafts", "num_groups", "width"), [(0, 32, 16), (3, 32, 16), (7, 32, 16), (8, 57, 9)])
def test_a_prompt_reads_its_keys_once_a_group(num_drafts, num_groups, width, calls):
    """512 tokens: with a token a row they would read 131,328 keys a layer. Would catch rows that are read one by one,
    and a second call where a row is a group by itself."""
    read_prompt("eagle" if num_drafts else "none", num_drafts, 512)
    num_passes, num_keys = NUM_LAYERS + (num_drafts > 0), width * num_groups * (num_groups + 1) // 2
    alone = NUM_SLOTS, num_drafts + 1, NUM_SLOTS * (num_drafts + 1)
    if width < 16:
        # padded to a size that is captured
        beside = NUM_SLOTS + 64, width, num_keys + (NUM_SLOTS + 64 - num_groups) * width
        expected = [beside] * num_passes
    else:
        expected = [alone, (num_groups, width, num_keys)] * num_passes
    # behind what is drafted
    assert calls[max(0, num_drafts - 1) :] == expected


@pytest.mark.parametrize("num_drafts", [0, 3])
def test_rounds_alone_take_one_call_a_layer(num_drafts, calls):
    made = engine("eagle" if num_drafts else "none", num_drafts, **READ)
    with torch.inference_mode():
        made.prepare()
        made._runner.launch_rounds(NUM_SLOTS, num_drafts, 20)
    num_drafted = max(0, num_drafts - 1)
    passes = NUM_LAYERS + (num_drafts > 0)
    assert [shape[:2] for shape in calls] == [(NUM_SLOTS, 1)] * num_drafted + [(NUM_SLOTS, num_drafts + 1)] * passes


def test_rows_of_a_group_follow_one_another_and_lie_in_their_slots():
    """Portions of prompts, from anywhere on, of any length."""
    generator, spare = Random(3), 12
    for _ in range(300):
        depth = generator.randint(0, 9)
        width, size = depth + 1, rows_of_group(depth + 1)
        chunks, lengths = [], {spare: 0}
        for slot in range(generator.randint(1, 6)):
            lengths[slot] = generator.randint(1, 60)
            sequence = Sequence(Request(str(slot), "toy", 0, 0, slot, prompt(slot, lengths[slot])), slot, 0.0)
            start = generator.randrange(lengths[slot])
            chunks.append(Chunk(sequence, start, generator.randint(start + 1, lengths[slot])))
        plan = StepPlan((), tuple(chunks), may_be_constrained=False)
        num_needed = num_rows(plan, depth)
        values = torch.from_numpy(in_rows(plan, depth, 6, num_needed + 2 * size, spare))
        fields, rows = fields_and_rows(values, depth, 6, num_needed + 2 * size)
        groups = rows.view(-1, size, rows.shape[1])
        slots, starts = groups[..., 0], groups[..., 1]
        assert (slots == slots[:, :1]).all() and (slots[-2:] == spare).all() and len(groups) * size == len(rows)
        step = torch.where(slots == spare, 0, width)[:, 1:]
        assert torch.equal(starts[:, 1:] - starts[:, :-1], step)
        # what a slot has beyond its prompt is as long as draft_slack makes it
        ends = torch.tensor([lengths[int(slot)] for slot in rows[:, 0]])
        assert (rows[:, 1] + width <= ends + draft_slack(depth, graphs=True)).all()
        for chunk in chunks:
            own = rows[rows[:, 0] == chunk.sequence.slot]
            num_tokens = chunk.stop - chunk.start
            assert len(own) * width == -(-num_tokens // tokens_of_group(width)) * tokens_of_group(width)
            read = own[:, 2:-1].flatten()
            assert tuple(read[:num_tokens].tolist()) == chunk.sequence.request.token_ids[chunk.start : chunk.stop]
            if chunk.ends_prompt:
                last = int(fields[1, chunk.sequence.slot]) - 6 * width
                assert rows[last // width, 0] == chunk.sequence.slot
                assert int(rows[last // width, 1]) + last % width == lengths[chunk.sequence.slot] - 1


@pytest.mark.parametrize("broken", ["slots", "starts"])
def test_a_group_that_lies_elsewhere_changes_tokens(broken, monkeypatch):
    """Broken copies: groups that read another slot, or from a token further on."""
    of = GroupedRows.of

    def moved(groups, slots, starts):
        right = of(groups, slots, starts)
        return right._replace(**{broken: right.slots.roll(1) if broken == "slots" else right.starts + 1})

    monkeypatch.setattr(GroupedRows, "of", moved)
    for kind in ("none", "eagle"):
        assert played(engine(kind, 2, **READ)) != in_one_piece(kind, 2)
