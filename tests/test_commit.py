"""The accounting at the end of a round: each case states the error it would catch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.engine.commit import commit
from harness.records import CutReason, FinishReason

EOS = 2


@pytest.mark.parametrize(
    ("emitted", "num_proposed", "num_remaining", "kept", "num_draft", "num_accepted", "cut", "finish"),
    [
        pytest.param([5, 6, 7], 4, 99, 3, 4, 2, None, None, id="nothing is cut: the recovered token is not accepted"),
        pytest.param([5, 6, 7, 8, 9], 4, 99, 5, 4, 4, None, None, id="bonus token is not accepted"),
        pytest.param([5], 0, 99, 1, 0, 0, None, None, id="no drafts"),
        pytest.param([5, EOS, 7, 8], 3, 99, 2, 1, 1, CutReason.eos, FinishReason.eos, id="eos as accepted draft token"),
        pytest.param([EOS, 6, 7], 4, 99, 1, 0, 0, CutReason.eos, FinishReason.eos, id="eos first: no evidence at all"),
        pytest.param([5, EOS], 4, 99, 2, 4, 1, None, FinishReason.eos, id="eos as recovered token keeps the rejection"),
        pytest.param([5, 6, EOS], 2, 99, 3, 2, 2, None, FinishReason.eos, id="eos as bonus token"),
        pytest.param([5, EOS, 7], 2, 99, 2, 1, 1, CutReason.eos, FinishReason.eos, id="only the bonus token is cut"),
        pytest.param([5, 6, 7, 8, 9], 4, 3, 3, 2, 2, CutReason.length, FinishReason.length, id="length cuts drafts"),
        pytest.param([5, 6, 7], 4, 3, 3, 2, 2, None, FinishReason.length, id="length reached without a cut"),
        pytest.param(
            [5, 6], 4, 3, 2, 2, 1, None, None, id="near the limit a rejection counts only where acceptance could"
        ),
        pytest.param([5, 6], 4, 1, 1, 0, 0, CutReason.length, FinishReason.length, id="one token left: no evidence"),
        pytest.param([5], 4, 1, 1, 0, 0, None, FinishReason.length, id="one token left and rejected: no evidence"),
        pytest.param([5, EOS, 7, 8], 3, 2, 2, 1, 1, CutReason.eos, FinishReason.eos, id="eos exactly at the limit"),
        pytest.param([5, 6, EOS, 8], 3, 2, 2, 1, 1, CutReason.length, FinishReason.length, id="eos beyond the limit"),
    ],
)
def test_counts(emitted, num_proposed, num_remaining, kept, num_draft, num_accepted, cut, finish):
    result = commit(emitted, num_proposed, num_remaining, {EOS})
    assert result == (tuple(emitted[:kept]), num_draft, num_accepted, cut, finish)


def test_eos_is_an_ordinary_token_when_ignored():
    result = commit([5, EOS, 7], 2, 99, ())
    assert result.token_ids == (5, EOS, 7) and result.finish_reason is None


@given(
    num_proposed=st.integers(0, 6),
    num_remaining=st.integers(1, 9),
    tokens=st.lists(st.integers(0, 5), min_size=7, max_size=7),
    data=st.data(),
)
def test_counts_can_never_contradict_the_output(num_proposed, num_remaining, tokens, data):
    """Would catch the last round over-counted by one, and a negative count."""
    emitted = tokens[: data.draw(st.integers(0, num_proposed)) + 1]
    result = commit(emitted, num_proposed, num_remaining, {EOS})
    assert 1 <= len(result.token_ids) <= num_remaining
    assert 0 <= result.num_accepted_tokens <= result.num_draft_tokens <= num_proposed
    assert result.num_accepted_tokens == len(result.token_ids) - 1
    assert (result.finish_reason is not None) == (EOS in result.token_ids or len(result.token_ids) == num_remaining)


def test_length_limit_does_not_bias_the_rates():
    """With acceptance probability 1/2 per position, the rate counted near the limit must be 1/2 at every position.

    Would catch counting a rejection at a position whose acceptance would have been cut.
    """
    num_proposed, num_remaining = 3, 2
    accepted, drafted = [0.0] * 3, [0.0] * 3
    for num_accepted, probability in enumerate((1 / 2, 1 / 4, 1 / 8, 1 / 8)):
        result = commit([5] * (num_accepted + 1), num_proposed, num_remaining, ())
        for position in range(num_proposed):
            accepted[position] += probability * (result.num_accepted_tokens > position)
            drafted[position] += probability * (result.num_draft_tokens > position)
    assert drafted == [1, 0, 0] and accepted[0] == pytest.approx(1 / 2)
