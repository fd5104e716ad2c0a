"""What counts when a grammar cuts a round: derived from what each kept token was."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.engine.commit import Commit, commit
from harness.engine.constraint.grammar_state import ConstraintOutcome
from harness.engine.constraint.masks import Masks
from harness.records import InconsistentRecordError
from harness.records.request import CutReason, FinishReason, RoundRecord
from tests.engine.test_constraint_parsers import CountedTokens
from tests.support.toy_grammar import MARKER, chain, grammar_state_of

pytestmark = pytest.mark.fast

EOS = 2
CUT, WHOLE = CutReason.grammar, FinishReason.grammar


def outcome(num_kept, num_evidence, is_complete=False):
    return ConstraintOutcome(num_kept, num_evidence, num_evidence, is_complete)


@pytest.mark.parametrize(
    ("emitted", "drafted", "ruled", "kept", "num_draft", "num_accepted", "cut", "finish"),
    [
        pytest.param([5, 6, 7, 8], [5, 6, 7], outcome(4, 3), 4, 3, 3, None, None, id="nothing is cut"),
        pytest.param([5, 6, 7, 8], [5, 6, 7], outcome(3, 3), 3, 3, 3, CUT, None, id="only the bonus token is cut"),
        pytest.param([5, 6, 9], [5, 6, 7], outcome(2, 3), 2, 3, 2, CUT, None, id="only the recovered token is cut"),
        pytest.param([5, 6, 7, 8], [5, 6, 7], outcome(2, 2), 2, 2, 2, CUT, None, id="a draft token is refused"),
        pytest.param([5, 6, 7, 8], [5, 6, 7], outcome(1, 1), 1, 1, 1, CUT, None, id="all after the marker is refused"),
        pytest.param([5, 9], [5, 6, 7], outcome(2, 1), 2, 1, 1, None, None, id="a refused draft token was rejected"),
        pytest.param([9], [5, 6, 7], outcome(1, 2), 1, 2, 0, None, None, id="rejected before a refused one"),
        pytest.param([5, 6, 7, 8], [5, 6, 7], outcome(2, 1, True), 2, 1, 1, CUT, WHOLE, id="whole as a draft token"),
        pytest.param([5, 6, 7, 8], [5, 6, 7], outcome(3, 2, True), 3, 2, 2, CUT, WHOLE, id="whole as the last draft"),
        pytest.param([5, 6, 7, 8], [5, 6, 7], outcome(4, 3, True), 4, 3, 3, None, WHOLE, id="whole as bonus token"),
        pytest.param([5, 9], [5, 6, 7], outcome(2, 3, True), 2, 3, 1, None, WHOLE, id="whole as recovered token"),
        pytest.param([9], [], outcome(1, 0, True), 1, 0, 0, None, WHOLE, id="whole without drafts"),
        pytest.param(
            [5, EOS, 7],
            [5, EOS],
            outcome(1, 1),
            1,
            1,
            1,
            CUT,
            None,
            id="an end of sequence that is refused ends nothing",
        ),
        pytest.param(
            [5, EOS, 7],
            [5, EOS],
            outcome(2, 1, True),
            2,
            1,
            1,
            CutReason.eos,
            FinishReason.eos,
            id="an end of sequence that is allowed is one",
        ),
    ],
)
def test_counts_of_a_cut_round(emitted, drafted, ruled, kept, num_draft, num_accepted, cut, finish):
    result = commit(emitted, drafted, 99, {EOS}, ruled)
    assert result == Commit(tuple(emitted[:kept]), num_draft, num_accepted, cut, finish, len(emitted) - kept)


@pytest.mark.parametrize(
    ("num_remaining", "num_kept", "cut", "finish"),
    [(1, 1, CutReason.length, FinishReason.length), (2, 2, CUT, FinishReason.length), (3, 2, CUT, None)],
    ids=["the length ends it first", "both end it at once", "the grammar cuts first"],
)
def test_the_length_limit_beside_a_cut(num_remaining, num_kept, cut, finish):
    result = commit([5, 6, 7, 8], [5, 6, 7], num_remaining, frozenset(), outcome(2, 2))
    assert (len(result.token_ids), result.cut_reason, result.finish_reason) == (num_kept, cut, finish)
    assert result.num_draft_tokens == min(2, num_remaining - 1)


def test_review_of_pr_40962_the_last_kept_token_of_a_cut_round_is_no_bonus_token():
    """First finding: with n kept tokens, n - 1 were counted as accepted, as if the last were always a bonus token."""
    result = commit([5, 6, 7, 8], [5, 6, 7], 99, frozenset(), outcome(2, 2))
    assert result.token_ids == (5, 6) and result.num_accepted_tokens == 2
    # where nothing but the bonus token went, all accepted draft tokens stay counted
    assert commit([5, 6, 7, 8], [5, 6, 7], 99, frozenset(), outcome(3, 3)).num_accepted_tokens == 3
    # and where a recovered token stays it is not counted
    assert commit([5, 9], [5, 6, 7], 99, frozenset(), outcome(2, 3)).num_accepted_tokens == 1


@pytest.mark.parametrize("is_whole", [False, True], ids=["seen before verification", "seen after it"])
def test_review_of_pr_40962_the_history_is_never_copied(is_whole):
    """Second finding: every round took O(context). A grammar state touches a round's tokens, and keeps none of them."""
    grammar_state = grammar_state_of("commit")
    touched = set()
    for _ in range(500):
        drafted, emitted = CountedTokens([4, 5, 4]), CountedTokens([4, 5, 4, 5])
        if is_whole:
            grammar_state.after_unmasked_round(drafted, emitted)
        else:
            grammar_state.before_verification(drafted, masks := Masks(8, 8))
            grammar_state.target_rows(masks)
            grammar_state.after_verification(emitted)
        touched.add(drafted.num_touched + emitted.num_touched)
    assert len(touched) == 1 and max(touched) <= 2 * 4
    held = [value for value in vars(grammar_state).values() if isinstance(value, list | tuple | dict | set)]
    assert not held


@given(
    drafted=st.lists(st.integers(0, 5), max_size=6),
    last=st.integers(0, 5),
    num_remaining=st.integers(1, 9),
    num_kept=st.integers(1, 7),
    is_complete=st.booleans(),
    data=st.data(),
)
def test_counts_of_any_cut_make_a_consistent_record(drafted, last, num_remaining, num_kept, is_complete, data):
    """Would catch an accepted count above what stays of the drafts."""
    num_emitted = data.draw(st.integers(1, len(drafted) + 1))
    emitted = [*drafted[: num_emitted - 1], last]
    num_kept = min(num_kept, num_emitted)
    # what is cut was refused, or follows what completed the grammar: known of drafts before verification
    num_evidence = min(len(drafted), max(num_kept - is_complete, 0)) if num_kept < num_emitted else len(drafted)
    result = commit(emitted, drafted, num_remaining, {EOS}, outcome(num_kept, num_evidence, is_complete))
    assert result.num_accepted_tokens <= min(len(result.token_ids), num_emitted - 1)
    assert len(result.token_ids) + result.num_cut_tokens == num_emitted
    RoundRecord(
        len(drafted),
        result.num_draft_tokens,
        result.num_accepted_tokens,
        len(result.token_ids),
        result.cut_reason,
        1.0,
        1.0,
        num_free_tokens=0,
        num_cut_tokens=result.num_cut_tokens,
    )


@pytest.mark.parametrize(
    ("policy", "counted"), [("commit", [1, 1, 0, 0]), ("mask", [1, 1, 1, 1])], ids=["commit", "mask"]
)
def test_a_cut_does_not_bias_the_rates(policy, counted):
    """Drafts: the marker, an allowed token, a refused one, another. Each passes its test with probability 1/2.

    Under commit the refused draft token and what follows count neither way, because an acceptance of it is cut. Under a
    mask it is rejected: acceptance of it has probability 0, and is counted as that.
    """
    drafted = [MARKER, 1, 7, 2]
    accepted, seen = [0.0] * 4, [0.0] * 4
    for passes in product([True, False], repeat=4):
        num_accepted = passes.index(False) if False in passes else 4
        grammar_state = grammar_state_of(policy, chain([1, 1, 2]))
        grammar_state.before_verification(drafted, masks := Masks(8, 8))
        grammar_state.target_rows(masks)
        if policy == "mask":
            num_accepted = min(num_accepted, 2)
        emitted = [*drafted[:num_accepted], 1 if num_accepted else 5]
        result = commit(emitted, drafted, 99, frozenset(), grammar_state.after_verification(emitted))
        for position in range(4):
            accepted[position] += (result.num_accepted_tokens > position) / 16
            seen[position] += (result.num_draft_tokens > position) / 16
    assert seen == counted
    rates = [0.5, 0.25, 0.0, 0.0]
    assert accepted == [pytest.approx(count * rate) for count, rate in zip(counted, rates, strict=True)]


@pytest.mark.parametrize(
    ("change", "message"),
    [({"num_free_tokens": 5}, "num_free_tokens"), ({"num_cut_tokens": 1}, "without a cut_reason")],
    ids=["more free than proposed", "cut without a reason"],
)
def test_a_record_that_contradicts_itself_is_refused(change, message):
    with pytest.raises(InconsistentRecordError, match=message):
        RoundRecord(4, 4, 2, 3, None, 1.0, 1.0, **change)
