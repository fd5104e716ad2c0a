"""Rounds that are committed at once, and the accounting of all rounds, which makes the same of them."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.engine.commit import Commit, commit, is_left_whole, stays_whole
from harness.engine.constraint.grammar_state import ConstraintOutcome
from harness.engine.constraint.parsers.markers import OneToken
from harness.engine.decided_row import RowLayout
from harness.engine.request import Limits, Request
from harness.engine.rounds import RoundFields, round_of
from harness.engine.sequence import Sequence
from harness.records.request import RoundRecord

EOS, NUM_TOKENS = 2, 4
LAYOUT = RowLayout.of(NUM_TOKENS)
LIMITS = Limits(9, frozenset({EOS}))
PARSER = OneToken(4)


def outcomes(drafted, num_emitted):
    """None, or what a constraint may make of a round."""
    free = st.builds(
        ConstraintOutcome,
        num_kept_tokens=st.integers(1, num_emitted),
        num_evidence=st.integers(0, len(drafted)),
        num_free_tokens=st.integers(0, len(drafted)),
        is_complete=st.booleans(),
    )
    whole = ConstraintOutcome(num_emitted, len(drafted), len(drafted), host_us=2.5, ran_as_one_graph=True)
    return st.sampled_from([None, whole]) | free


@given(
    drafted=st.lists(st.integers(0, 5), max_size=6),
    last=st.integers(0, 5),
    num_remaining=st.integers(1, 9),
    data=st.data(),
)
def test_a_round_that_stays_whole_is_committed_whole(drafted, last, num_remaining, data):
    """Would catch a round that ends its request, or drafts that are no evidence, among those that stay whole."""
    num_accepted = data.draw(st.integers(0, len(drafted)))
    emitted = [*drafted[:num_accepted], last]
    outcome = data.draw(outcomes(drafted, len(emitted)))
    tokens = [*emitted, *drafted]
    is_left = outcome is None or is_left_whole(outcome, num_accepted, len(drafted))
    if is_left and stays_whole(tokens, len(drafted), num_remaining, {EOS}):
        whole = Commit(tuple(emitted), len(drafted), num_accepted, None, None)
        assert commit(emitted, drafted, num_remaining, {EOS}, outcome) == whole
    assert stays_whole(tokens, len(drafted), len(drafted) + 2, frozenset())


def test_the_fields_of_a_round_are_those_of_its_record():
    """Records are made by place."""
    assert RoundFields._fields == RoundRecord.__struct_fields__


def sequence(num_output):
    found = Sequence(Request("0", "toy", 0, 0, 7, (5, 6, 7), parser=PARSER), 3, 0.0)
    found.token_ids += [1] * num_output
    found.launch(NUM_TOKENS + 1)
    found.launch(NUM_TOKENS + 1)
    found.carry(0.25)
    return found


def row(generator, num_drafted, num_logprobs):
    """As a step leaves it: tokens beyond the accepted ones are -1, those beyond the drafted ones may be anything."""
    num_accepted = generator.randint(0, max(num_drafted, 0))
    drafts = [generator.choice([EOS, 3, 4, 5, 6, 7]) for _ in range(NUM_TOKENS)]
    emitted = [*drafts[:num_accepted], generator.choice([EOS, 3, 4, 5]), *[-1] * (NUM_TOKENS - num_accepted)]
    counts = num_accepted, num_drafted, int(generator.random() < 0.1)
    return [*emitted, *drafts, *counts, *range(num_logprobs * (NUM_TOKENS + 1))]


@pytest.mark.parametrize("num_logprobs", [0, 4], ids=["tokens alone", "log-probabilities"])
@pytest.mark.parametrize("constrained", [False, True], ids=["free", "constrained"])
def test_a_whole_round_leaves_a_request_as_the_accounting_of_any_round_does(constrained, num_logprobs):
    """Would catch a count, a token, a time or a draft that differs, and a round taken for whole that is not."""
    generator, num_whole, num_cut = Random(3), 0, 0
    for _ in range(3000):
        found, expected = (sequence(num_output) for num_output in [generator.randint(0, 8)] * 2)
        decided = row(generator, generator.choice([-1, 0, 2, NUM_TOKENS]), num_logprobs)
        round_, outcome = round_of(decided, LAYOUT), None
        if constrained:
            num_drafts = len(round_.draft_ids)
            outcome = ConstraintOutcome(len(round_.emitted), num_drafts, num_drafts - 1, host_us=3.5)
        if found.append_whole(decided, LAYOUT, outcome, LIMITS, 1.5, 0.5):
            num_whole += 1
            expected.append_round(round_, outcome, LIMITS, 1.5, 0.5)
            # whole rounds are kept in another form
            assert found.rounds == expected.rounds
            found._rounds, expected._rounds = [], []
        else:
            num_cut += 1
        assert found == expected
    assert min(num_whole, num_cut) > 300


@pytest.mark.parametrize("counts", [(0, -1, 0), (0, 2, 1), (3, 2, 0), (0, NUM_TOKENS + 1, 0)], ids=str)
def test_a_row_that_says_something_special_is_never_whole(counts):
    """Deferred, without a distribution, and counts that contradict each other."""
    limits = Limits(99, frozenset())
    assert not sequence(0).append_whole([5, 6, 7, 3, 3, 5, 6, 7, 3, *counts], LAYOUT, None, limits, 1.0, 1.0)
