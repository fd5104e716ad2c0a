"""Steps from counts that a server sends with its tokens: exact where tokens come one by one, never another number."""

import random
from itertools import pairwise

import pytest

from harness.backends.server.reply import MalformedAnswer
from harness.backends.server.rounds import Steps
from harness.backends.server.step_boundaries import steps_between

pytestmark = pytest.mark.fast

DEPTH, LIMIT = 3, 24


def answer(rng, always_drafts):
    """(drafted, accepted) of the steps of an answer that ends at its limit, and the counts after each of its tokens."""
    steps, counted, num = [], [(1, 0, 0)], 1
    while num < LIMIT:
        drafts = always_drafts or rng.random() < 0.5
        drafted = min(DEPTH if always_drafts else rng.randint(1, DEPTH), LIMIT - num - 1) if drafts else 0
        steps.append((drafted, rng.randint(0, drafted)))
        for _ in range(steps[-1][1] + 1):
            num += 1
            counted.append((num, sum(item[0] for item in steps), sum(item[1] for item in steps)))
    return steps, counted


@pytest.mark.parametrize("always_drafts", [True, False], ids=["a model", "n-grams"])
def test_steps_are_the_servers(always_drafts):
    """Would catch a step that begins a token late, and n-grams that found nothing which pass for rejected drafts."""
    rng = random.Random(1)
    for _ in range(200):
        steps, counted = answer(rng, always_drafts)
        expected = Steps(*zip(*steps, strict=True), is_complete=True)
        assert steps_between(counted, DEPTH if always_drafts else None, LIMIT) == expected


def test_tokens_that_come_together_are_split_in_the_only_way_or_not_at_all():
    """Would catch acceptance by position that is guessed where a server holds tokens back."""
    rng, num_split = random.Random(2), 0
    for _ in range(300):
        steps, counted = answer(rng, always_drafts=True)
        begin = rng.randrange(len(counted) - 4)
        held = [*counted[:begin], *counted[begin + rng.randint(1, 4) :]]
        found = steps_between(held, DEPTH, LIMIT)
        if found is not None:
            num_split += 1
            # within a chunk the order is not told
            assert sorted(zip(found.drafted, found.accepted, strict=True)) == sorted(steps)
            ends = {sum(item[1] + 1 for item in steps[:place]) + 1 for place in range(len(steps) + 1)}
            seen = {num for num, _, _ in held} & ends
            mine = list(zip(found.drafted, found.accepted, strict=True))
            own = {sum(item[1] + 1 for item in mine[:place]) + 1 for place in range(len(mine) + 1)}
            assert seen <= own
    assert num_split > 100


@pytest.mark.parametrize("counted", [[(1, 0, 0), (2, 3, 1), (3, 2, 1)], [(1, 0, 0), (2, 3, 2), (3, 6, 3)]])
def test_counts_that_contradict_themselves_are_refused(counted):
    """Counts that go back, and a step that begins before the tokens of the one before have come."""
    assert all(len(set(pair)) == 2 for pair in pairwise(counted))
    with pytest.raises(MalformedAnswer):
        steps_between(counted, DEPTH, LIMIT)
