"""What a grammar state lets stay of a round, case by case, under each policy."""

import time

import pytest

from harness.engine.commit import commit
from harness.engine.constrained_step import after_unmasked_round
from harness.engine.constraint.grammar_state import GrammarState
from harness.engine.constraint.masks import Masks
from harness.engine.constraint.matcher import FREE
from harness.engine.constraint.parsers.markers import NoReasoning, SeveralTokens
from harness.engine.rounds import Round
from tests.support.toy_grammar import MARKER, chain, grammar_state_of

pytestmark = pytest.mark.fast

VOCAB_SIZE = 8
DOUBLED = chain([1, 1, 2, 6])
"""An answer that begins with the same token twice, as `{{` would; then 2 and 6."""


def play(grammar_state: GrammarState, drafted, emitted):
    """One round: (mask bits of each target row or None, outcome)."""
    masks = Masks(16, VOCAB_SIZE)
    grammar_state.before_verification(drafted, masks)
    rows = grammar_state.target_rows(masks)
    assert len(rows) == len(drafted) + 1
    bits = [None if row == FREE else int(masks.words[row, 0]) for row in rows]
    return bits, grammar_state.after_verification(emitted)


def allowed(*token_ids):
    return sum(1 << token_id for token_id in token_ids)


@pytest.mark.parametrize("policy", ["late", "commit", "mask"])
@pytest.mark.parametrize(
    ("drafted", "emitted", "num_reasoning"),
    [
        pytest.param([MARKER, 5, 5], [MARKER, 1], 1, id="first in the round"),
        pytest.param([5, MARKER, 5], [5, MARKER, 1], 2, id="in the middle"),
        pytest.param([5, 5, MARKER], [5, 5, MARKER, 1], 3, id="last draft token"),
        pytest.param([5, 5], [5, 5, MARKER], 3, id="as the bonus token"),
        pytest.param([5, 4], [5, MARKER], 2, id="as the recovered token"),
        pytest.param([], [MARKER], 1, id="at the end of the prompt"),
    ],
)
def test_the_marker_is_found_wherever_it_stands(policy, drafted, emitted, num_reasoning):
    grammar_state = grammar_state_of(policy, DOUBLED)
    _, outcome = play(grammar_state, drafted, emitted)
    assert grammar_state.num_reasoning_tokens == num_reasoning
    assert outcome.num_kept_tokens == len(emitted)
    # late does not see the answer's first token; no matcher is fed the marker itself
    assert grammar_state.matcher.fed == ([] if policy == "late" else emitted[num_reasoning:])


@pytest.mark.parametrize("policy", ["commit", "mask"])
@pytest.mark.parametrize(
    "rounds",
    [[[3], [4, 1]], [[5, 3], [4], [1]], [[3], [5], [4, 5], [3, 4, 1]]],
    ids=["over two rounds", "over three, with the answer in the third", "after a false start"],
)
def test_a_marker_split_over_rounds(policy, rounds):
    grammar_state = grammar_state_of(
        policy, DOUBLED, SeveralTokens((3, 4)) if len(rounds) != 3 else SeveralTokens((5, 3, 4))
    )
    for tokens in rounds:
        play(grammar_state, tokens[:-1], tokens)
    assert grammar_state.in_answer and grammar_state.matcher.fed == [1]


@pytest.mark.parametrize("policy", ["late", "commit", "mask"])
def test_a_marker_inside_a_rejected_draft_ends_nothing(policy):
    grammar_state = grammar_state_of(policy, DOUBLED)
    _, outcome = play(grammar_state, [5, MARKER, 1], [5, 4])
    assert not grammar_state.in_answer and grammar_state.matcher.fed == []
    assert outcome.num_free_tokens == 2
    # and the same marker counts when it comes
    play(grammar_state, [MARKER], [MARKER, 1])
    assert grammar_state.num_reasoning_tokens == 3


@pytest.mark.parametrize("policy", ["commit", "mask"])
def test_the_second_of_two_markers_is_an_answer_token(policy):
    grammar_state = grammar_state_of(policy, chain([1, MARKER, 2]))
    _, outcome = play(grammar_state, [MARKER, 1, MARKER], [MARKER, 1, MARKER, 2])
    assert (
        grammar_state.num_reasoning_tokens == 1 and grammar_state.matcher.fed == [1, MARKER, 2] and outcome.is_complete
    )


@pytest.mark.parametrize("policy", ["commit", "mask"])
def test_an_answer_that_starts_in_the_round_goes_on_in_the_next(policy):
    """The doubled first token: a grammar that has not seen the first one would ask for it again."""
    grammar_state = grammar_state_of(policy, DOUBLED)
    play(grammar_state, [MARKER], [MARKER, 1])
    bits, _ = play(grammar_state, [1], [1, 2])
    assert bits == [allowed(1), allowed(2)] and grammar_state.matcher.fed == [1, 1, 2]


def test_late_asks_for_the_beginning_again():
    grammar_state = grammar_state_of("late", chain([1, 2]))
    play(grammar_state, [MARKER], [MARKER, 1])
    bits, _ = play(grammar_state, [1], [1, 2])
    assert bits[0] == allowed(1)


def test_commit_leaves_every_row_of_the_boundary_round_free():
    bits, _ = play(grammar_state_of("commit", DOUBLED), [5, MARKER, 1], [5, MARKER, 1, 1])
    assert bits == [None] * 4


def test_mask_frees_the_marker_and_masks_what_follows_with_the_bonus():
    bits, _ = play(grammar_state_of("mask", DOUBLED), [5, MARKER, 1], [5, MARKER, 1, 1])
    assert bits == [None, None, allowed(1), allowed(1)]


def test_mask_stops_behind_a_refused_draft():
    """What follows a refused draft token is never reached, and has no state of the grammar."""
    grammar_state = grammar_state_of("mask", DOUBLED)
    bits, outcome = play(grammar_state, [MARKER, 1, 7, 2], [MARKER, 1, 1])
    assert bits == [None, allowed(1), allowed(1), None, None]
    assert outcome.num_evidence == 4 and grammar_state.matcher.fed == [1, 1]


def test_commit_cuts_at_the_first_refused_token():
    grammar_state = grammar_state_of("commit", DOUBLED)
    _, outcome = play(grammar_state, [MARKER, 1, 7, 2], [MARKER, 1, 7, 2, 6])
    assert outcome.num_kept_tokens == 2 and grammar_state.matcher.fed == [1]
    # the next round's first token is drawn under the mask
    bits, _ = play(grammar_state, [], [1])
    assert bits == [allowed(1)]


@pytest.mark.parametrize("policy", ["commit", "mask"])
def test_the_round_stops_where_the_grammar_is_complete(policy):
    grammar_state = grammar_state_of(policy, chain([1, 2]))
    _, outcome = play(grammar_state, [MARKER, 1, 2, 5], [MARKER, 1, 2, 5, 5])
    assert outcome.num_kept_tokens == 3 and outcome.is_complete
    assert outcome.num_evidence == 2


@pytest.mark.parametrize("policy", ["commit", "mask"])
def test_an_end_of_sequence_right_after_the_marker(policy):
    """7 ends the sequence, and the grammar does not allow it yet."""
    grammar_state = grammar_state_of(policy, DOUBLED)
    if policy == "commit":
        _, outcome = play(grammar_state, [MARKER, 7], [MARKER, 7, 4])
        assert outcome.num_kept_tokens == 1
    else:
        bits, outcome = play(grammar_state, [MARKER, 7], [MARKER, 1])
        assert bits[1] == allowed(1) and outcome.num_kept_tokens == 2
    assert not outcome.is_complete


def test_an_end_of_sequence_right_after_the_marker_slips_through_late():
    grammar_state = grammar_state_of("late", DOUBLED)
    _, outcome = play(grammar_state, [MARKER, 7], [MARKER, 7, 4])
    assert commit([MARKER, 7, 4], [MARKER, 7], 99, {7}, outcome).finish_reason.value == "eos"


def test_behind_the_boundary_drafts_from_a_refused_one_on_are_not_worth_verifying():
    """Of a drafter that looks its tokens up; one that draws them does so under the masks."""
    grammar_state = grammar_state_of("commit", DOUBLED)
    play(grammar_state, [], [MARKER])
    play(grammar_state, [1, 1, 5, 2], [1, 1, 2])
    assert grammar_state.num_drafts_to_verify == 2


@pytest.mark.parametrize("policy", ["late", "commit", "mask"])
@pytest.mark.parametrize(
    ("drafted", "emitted"),
    [
        pytest.param([5, 4, 5], [5, 4, 5, 4], id="all accepted"),
        pytest.param([5, 4, 5], [5, 5], id="one accepted"),
        pytest.param([], [5], id="no drafts"),
        pytest.param([5, 4], [5, 4, MARKER], id="the marker as the bonus token"),
        pytest.param([5, 4], [5, MARKER], id="the marker as the recovered token"),
    ],
)
def test_a_round_is_ruled_alike_before_its_verification_and_after_it(policy, drafted, emitted):
    """Where the drafts do not end reasoning. Would catch an unmasked round that does not advance the grammar state, or
    counts otherwise."""
    seen_before, seen_after = (grammar_state_of(policy, DOUBLED) for _ in range(2))
    for grammar_state in (seen_before, seen_after):
        play(grammar_state, [5], [5, 4])
    _, before = play(seen_before, drafted, emitted)
    after = seen_after.after_unmasked_round(drafted, emitted)
    assert (before.ran_as_one_graph, after.ran_as_one_graph) == (False, True)
    assert after._replace(ran_as_one_graph=False, host_us=before.host_us) == before
    assert seen_after.num_reasoning_tokens == seen_before.num_reasoning_tokens
    assert seen_after.needs_drafts == seen_before.needs_drafts == (MARKER in emitted)


@pytest.mark.parametrize(
    ("drafted", "emitted"),
    [
        pytest.param([5, MARKER, 1], [5, MARKER, 1, 1], id="accepted"),
        pytest.param([5, MARKER], [4], id="rejected before it"),
    ],
)
def test_a_whole_round_whose_drafts_end_reasoning_is_refused(drafted, emitted):
    grammar_state = grammar_state_of("mask", DOUBLED)
    message = r"^OneToken\.ending: expected tokens .* found an end without \(3,\); correct it, or leave it empty$"
    with pytest.raises(ValueError, match=message):
        grammar_state.after_unmasked_round(drafted, emitted)
    assert not grammar_state.in_answer and grammar_state.matcher.fed == []


def test_a_whole_round_behind_the_boundary_is_refused():
    grammar_state = grammar_state_of("mask", DOUBLED)
    play(grammar_state, [], [MARKER])
    with pytest.raises(ValueError, match=r"^OneToken\.ending: expected"):
        grammar_state.after_unmasked_round([1], [1, 1])
    assert grammar_state.matcher.fed == []


@pytest.mark.parametrize(
    "tokens",
    [
        pytest.param([3, 4], id="the marker"),
        pytest.param([5, 5, 3], id="its beginning"),
        pytest.param([4, 5], id="its end alone"),
        pytest.param([5, 5], id="none of it"),
    ],
)
def test_a_round_that_passes_is_the_round_that_is_settled(tokens):
    """Would catch a round that passes and leaves the parser, or the count of reasoning tokens, where they were."""
    passed, settled = (grammar_state_of("mask", DOUBLED, SeveralTokens((3, 4))) for _ in range(2))
    does_pass = passed.try_unmasked_round([], tokens)
    outcome = settled.after_unmasked_round([], tokens)
    assert does_pass == (4 not in tokens)
    if not does_pass:
        # nothing was taken in
        assert (
            not passed.in_answer and passed.after_unmasked_round([], tokens).num_kept_tokens == outcome.num_kept_tokens
        )
    assert (outcome.num_kept_tokens, outcome.is_complete, outcome.ran_as_one_graph) == (len(tokens), False, True)
    for grammar_state in (passed, settled):
        for following in ([4], [3, 4]):
            if not grammar_state.in_answer:
                grammar_state.after_unmasked_round([], following)
    assert passed.num_reasoning_tokens == settled.num_reasoning_tokens > 0


def test_no_round_passes_once_the_host_must_see_the_drafts():
    """Would catch answer tokens that the grammar never sees."""
    grammar_state = grammar_state_of("mask", DOUBLED)
    play(grammar_state, [], [MARKER])
    assert not grammar_state.try_unmasked_round([1], [1, 1]) and not grammar_state.try_unmasked_round([], [5])
    assert grammar_state.matcher.fed == []
    without_reasoning = grammar_state_of("mask", DOUBLED, NoReasoning())
    assert not without_reasoning.try_unmasked_round([], [5])


@pytest.mark.parametrize("policy", ["late", "commit", "mask"])
def test_looking_ahead_leaves_the_grammar_where_it_was(policy):
    grammar_state = grammar_state_of(policy, DOUBLED)
    grammar_state.before_verification([MARKER, 1, 1, 2], Masks(16, VOCAB_SIZE))
    assert grammar_state.matcher.fed == [] and not grammar_state.in_answer


def test_guards_of_a_whole_step_share_one_time_and_rounds_alike_a_ruling():
    """Would catch time that is counted for one request only, or for each of them in full."""
    rounds = {0: Round([5, 4], [5], False, []), 3: Round([4, 4], [5], False, []), 5: Round([5], [], False, [])}
    rounds[8] = Round([5, MARKER], [4], False, [])
    grammar_states = {slot: grammar_state_of("commit", DOUBLED) for slot in rounds}
    began = time.perf_counter()
    outcomes = after_unmasked_round(grammar_states, rounds)
    spent_us = (time.perf_counter() - began) * 1e6
    assert outcomes[0] is outcomes[3] and outcomes.keys() == rounds.keys()
    assert [outcomes[slot].num_kept_tokens for slot in rounds] == [2, 2, 1, 2]
    assert [outcomes[slot].num_evidence for slot in rounds] == [1, 1, 0, 1]
    assert outcomes[0].host_us == outcomes[5].host_us > 0 and outcomes[8].host_us > outcomes[0].host_us
    assert sum(outcome.host_us for outcome in outcomes.values()) <= spent_us
    assert [grammar_state.in_answer for grammar_state in grammar_states.values()] == [False, False, False, True]
