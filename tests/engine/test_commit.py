"""The accounting at the end of a round: each case states the error it would catch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.engine.commit import Commit, commit
from harness.records.request import CutReason, FinishReason

pytestmark = pytest.mark.fast

EOS = 2


@pytest.mark.parametrize(
    ("emitted", "drafted", "num_remaining", "kept", "num_draft", "num_accepted", "cut", "finish"),
    [
        pytest.param([5, 6, 7], [5, 6, 8, 9], 99, 3, 4, 2, None, None, id="the recovered token is not accepted"),
        pytest.param([5, 6, 7, 8, 9], [5, 6, 7, 8], 99, 5, 4, 4, None, None, id="the bonus token is not accepted"),
        pytest.param([5], [], 99, 1, 0, 0, None, None, id="no drafts"),
        pytest.param(
            [5, EOS, 7, 8], [5, EOS, 7], 99, 2, 1, 1, CutReason.eos, FinishReason.eos, id="eos as accepted draft token"
        ),
        pytest.param([5, 9], [5, EOS, 7], 99, 2, 1, 1, None, None, id="a rejected drafted eos is no evidence either"),
        pytest.param([9], [5, EOS, 7], 99, 1, 1, 0, None, None, id="rejected before a drafted eos"),
        pytest.param([EOS, 6, 7], [EOS, 6], 99, 1, 0, 0, CutReason.eos, FinishReason.eos, id="eos first: no evidence"),
        pytest.param([5, EOS], [5, 6, 7, 8], 99, 2, 4, 1, None, FinishReason.eos, id="eos as recovered token"),
        pytest.param([5, 6, EOS], [5, 6], 99, 3, 2, 2, None, FinishReason.eos, id="eos as bonus token"),
        pytest.param([5, EOS, 7], [5, EOS], 99, 2, 1, 1, CutReason.eos, FinishReason.eos, id="only the bonus is cut"),
        pytest.param(
            [5, 6, 7, 8, 9], [5, 6, 7, 8], 3, 3, 2, 2, CutReason.length, FinishReason.length, id="length cuts drafts"
        ),
        pytest.param([5, 6, 7], [5, 6, 8, 9], 3, 3, 2, 2, None, FinishReason.length, id="length reached without a cut"),
        pytest.param([5, 9], [5, 6, 7, 8], 3, 2, 2, 1, None, None, id="near the limit only what could be accepted"),
        pytest.param([5, 6], [5, 7, 8, 9], 1, 1, 0, 0, CutReason.length, FinishReason.length, id="one token left"),
        pytest.param([9], [5, 6, 7, 8], 1, 1, 0, 0, None, FinishReason.length, id="one token left and rejected"),
        pytest.param([5, EOS, 7, 8], [5, EOS, 7], 2, 2, 1, 1, CutReason.eos, FinishReason.eos, id="eos at the limit"),
        pytest.param(
            [5, 6, EOS, 8], [5, 6, EOS], 2, 2, 1, 1, CutReason.length, FinishReason.length, id="eos beyond the limit"
        ),
    ],
)
def test_counts(emitted, drafted, num_remaining, kept, num_draft, num_accepted, cut, finish):
    result = commit(emitted, drafted, num_remaining, {EOS})
    assert result == Commit(tuple(emitted[:kept]), num_draft, num_accepted, cut, finish, len(emitted) - kept)


def test_eos_is_an_ordinary_token_when_ignored():
    result = commit([5, EOS, 7], [5, EOS], 99, frozenset())
    assert result.token_ids == (5, EOS, 7) and result.finish_reason is None


@given(
    drafted=st.lists(st.integers(0, 5), max_size=6),
    last=st.integers(0, 5),
    num_remaining=st.integers(1, 9),
    data=st.data(),
)
def test_counts_can_never_contradict_the_output(drafted, last, num_remaining, data):
    """Would catch the last round over-counted by one, and a negative count."""
    emitted = [*drafted[: data.draw(st.integers(0, len(drafted)))], last]
    result = commit(emitted, drafted, num_remaining, {EOS})
    assert 1 <= len(result.token_ids) <= num_remaining
    assert 0 <= result.num_accepted_tokens <= result.num_draft_tokens <= len(drafted)
    assert result.num_accepted_tokens <= len(result.token_ids) - 1
    assert (result.finish_reason is not None) == (EOS in result.token_ids or len(result.token_ids) == num_remaining)


@pytest.mark.parametrize(
    ("drafted", "num_remaining", "counted"),
    [([5, 6, 7], 2, [1, 0, 0]), ([5, EOS, 7], 99, [1, 0, 0]), ([5, 6, EOS], 99, [1, 1, 0]), ([5, 6, 7], 99, [1, 1, 1])],
    ids=["length limit", "eos drafted second", "eos drafted third", "nothing ends"],
)
def test_the_end_of_a_request_does_not_bias_the_rates(drafted, num_remaining, counted):
    """With acceptance probability 1/2 per position, what is counted must be 1/2 at every position that counts.

    Would catch counting a rejection at a position whose acceptance would have been cut.
    """
    accepted, seen = [0.0] * 3, [0.0] * 3
    for num_accepted, probability in enumerate((1 / 2, 1 / 4, 1 / 8, 1 / 8)):
        result = commit([*drafted[:num_accepted], 9], drafted, num_remaining, {EOS})
        for position in range(3):
            accepted[position] += probability * (result.num_accepted_tokens > position)
            seen[position] += probability * (result.num_draft_tokens > position)
    assert seen == counted
    assert accepted == [pytest.approx(count * 0.5 ** (position + 1)) for position, count in enumerate(counted)]


@pytest.mark.parametrize(
    ("emitted", "drafted", "num_remaining", "num_draft", "num_accepted", "num_positions"),
    [
        pytest.param([7, 9], [5, 7, 6, 8, 6, 8], 99, 6, 1, 2, id="all of the tree counts"),
        pytest.param([7, 8, 9], [5, 7, EOS, 8, 6, 8], 99, 2, 1, 1, id="eos on another branch"),
        pytest.param([7, 8, 9], [5, 7, 6, 8, 6, 8], 2, 2, 1, 1, id="one more token, so that depth 2 cannot go on"),
        pytest.param([7, 8, 9], [EOS, 7, 6, 8, 6, 8], 99, 0, 0, 0, id="eos after the context"),
        pytest.param([9], [5, 7], 99, 2, 0, 1, id="deeper nodes were not drawn"),
    ],
)
def test_evidence_of_a_tree_is_what_lies_at_depths_that_count(
    emitted, drafted, num_remaining, num_draft, num_accepted, num_positions
):
    """Would catch a depth that counts where it was rejected and not where it ended the request."""
    depths = (1, 1, 2, 2, 2, 2)[: len(drafted)]
    result = commit(emitted, drafted, num_remaining, {EOS}, depths=depths)
    assert (result.num_draft_tokens, result.num_accepted_tokens) == (num_draft, num_accepted)
    assert result.num_draft_positions == num_positions
    assert result.token_ids == tuple(emitted[: min(num_remaining, len(emitted))])


def test_an_end_of_sequence_that_cannot_be_emitted_is_evidence():
    """Would catch rates that are too high under min_tokens: drafted there, an EOS is rejected for certain, and would
    never have cut anything."""
    chain = {free: commit([7, 8], [7, EOS, 9], 100, {EOS}, num_free_tokens=free) for free in (0, 1, 2, 9)}
    assert {free: found.num_draft_tokens for free, found in chain.items()} == {0: 1, 1: 1, 2: 3, 9: 3}
    assert all(found.token_ids == (7, 8) and found.num_accepted_tokens == 1 for found in chain.values())
    tree = commit([7], [EOS, 9, EOS], 50, {EOS}, depths=[1, 1, 2], num_free_tokens=1)
    assert (tree.num_draft_positions, tree.num_draft_tokens) == (1, 2)
