"""However drafts split marker and answer over rounds, the text is that of one token at a time."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.engine.commit import commit
from harness.engine.constraint.masks import Masks
from harness.engine.constraint.matcher import FREE
from harness.engine.constraint.parsers.markers import SeveralTokens
from tests.support.toy_grammar import chain, grammar_state_of

pytestmark = pytest.mark.fast

VOCAB_SIZE = 8


def greedy_choice(script, position, bits):
    """A target that is sure of itself: token `script[position]`, else the next one up that its mask allows."""
    wanted = script[position % len(script)]
    order = [(wanted + rank) % VOCAB_SIZE for rank in range(VOCAB_SIZE)]
    return next(token for token in order if bits is None or bits >> token & 1)


def decode(grammar_state, script, guesses, num_drafts, length):
    """Greedy decoding: drafts are the script's tokens where `guesses` says so; returns the tokens."""
    tokens = []
    guesses = iter(guesses)
    while len(tokens) < length:
        drafted = [
            script[(len(tokens) + place) % len(script)] if next(guesses, True) else (place + 5) % VOCAB_SIZE
            for place in range(num_drafts)
        ]
        masks = Masks(num_drafts + 1, VOCAB_SIZE)
        grammar_state.before_verification(drafted, masks)
        rows = grammar_state.target_rows(masks)
        bits = [None if row == FREE else int(masks.words[row, 0]) for row in rows]
        emitted = []
        for place, draft in enumerate([*drafted[: grammar_state.num_drafts_to_verify], None]):
            emitted.append(greedy_choice(script, len(tokens) + place, bits[place]))
            if emitted[-1] != draft:
                break
        outcome = grammar_state.after_verification(emitted)
        result = commit(
            emitted, drafted[: grammar_state.num_drafts_to_verify], length - len(tokens), frozenset(), outcome
        )
        tokens += result.token_ids
        if result.finish_reason is not None:
            break
    return tokens


@pytest.mark.parametrize("policy", ["commit", "mask"])
@settings(max_examples=150)
@given(
    reasoning=st.lists(st.sampled_from([0, 1, 3, 4, 5]), max_size=6),
    answer=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=6),
    grammar=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=6),
    num_drafts=st.integers(1, 5),
    guesses=st.lists(st.booleans(), max_size=30),
)
def test_random_splits_of_marker_and_answer_give_the_text_of_one_token_at_a_time(
    policy, reasoning, answer, grammar, num_drafts, guesses
):
    """Would catch a marker missed between two rounds, a token fed twice or not at all, a cut too early or too late."""
    script = [*reasoning, 3, 4, *answer]
    parser = SeveralTokens((3, 4))
    alone = decode(grammar_state_of("mask", chain(grammar), parser), script, [], 0, 24)
    assert decode(grammar_state_of(policy, chain(grammar), parser), script, guesses, num_drafts, 24) == alone


def test_late_fails_the_same_comparison():
    script, grammar = [5, 3, 4, 1, 2, 6], chain([1, 2, 6])
    alone = decode(grammar_state_of("mask", grammar, SeveralTokens((3, 4))), script, [], 0, 24)
    assert decode(grammar_state_of("late", grammar, SeveralTokens((3, 4))), script, [], 3, 24) != alone == script
