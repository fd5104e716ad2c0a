"""Steps launched as a whole before the end of reasoning give what steps give in which the host always takes part."""

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.engine.constraint.grammar_state import GrammarState
from harness.engine.constraint.parsers.markers import OneToken, SeveralTokens
from harness.engine.constraint.policies.mask import Mask
from harness.engine.slots import MAX_ENDING_TOKENS
from kernels.contract import DraftSampling, VerificationMethod
from tests.support.reasoning_end_runs import (
    NUM_REQUESTS,
    PARSERS,
    VOCAB_SIZE,
    boundary_places,
    grammar_states_of,
    paths,
    play,
    without_time,
)
from tests.support.tiny_engines import tiny_engine, tiny_requests
from tests.support.toy_grammar import MARKER, ToyMatcher, chain, grammar_state_of
from tests.support.toy_markov import toy_engine, toy_requests, transitions

Method = VerificationMethod
POLICIES = ["late", "commit", "mask"]


@cache
def played_with_host(policy, parser):
    """Three draft tokens, no step launched as a whole."""
    return play(grammar_states_of(policy, parser), 3)


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize(
    ("policy", "overlaps"),
    [("late", True), ("commit", True), ("mask", True), ("mask", False)],
    ids=["late", "commit", "mask", "mask, one step after another"],
)
def test_every_round_is_that_of_steps_with_the_host(policy, parser, overlaps):
    """Would catch a marker that the device misses, a deferred round that moved a stream, a length or the drafter's
    state, a request in its answer in a step without masks, and other counts."""
    expected = played_with_host(policy, parser)
    found = play(grammar_states_of(policy, parser), 3, graphs=True, overlaps=overlaps)
    assert without_time(found) == without_time(expected)
    assert paths(expected)[0] == paths(expected)[2] == 0
    num_as_one_graph, num_with_host, num_deferred = paths(found)
    is_ahead = parser not in ("nothing known of the ending", "no reasoning")
    assert (num_as_one_graph > 0, num_deferred > 0, num_with_host > 0) == (is_ahead, is_ahead, True)


def test_unconstrained_requests_are_not_checked_in_a_constrained_engine():
    """One engine serves all policies of a comparison in turn. Would catch a slot that is still deferred for the
    reasoning of the request before it, and requests that are counted as constrained."""

    def engine(**options):
        sizes = {"num_speculative_tokens": 3, "max_new_tokens": 24, "num_slots": 7}
        laws = transitions(VOCAB_SIZE, 12), transitions(VOCAB_SIZE, 19)
        return toy_engine(*laws, Method.probabilistic, DraftSampling.sampled, graphs=True, **sizes, **options)

    def play_in(subject, grammar_states=None):
        requests = toy_requests(NUM_REQUESTS)
        if grammar_states is not None:
            requests = [
                replace(item, grammar_state=grammar_state)
                for item, grammar_state in zip(requests, grammar_states, strict=True)
            ]
        found = subject.run(requests, lambda record: None)
        return sorted(found.requests, key=lambda item: int(item.prompt_id))

    shared = engine(constrained=True, overlaps=True)
    alone = play_in(engine(overlaps=True))
    first = play_in(shared, grammar_states_of("mask", "two tokens"))
    assert min(paths(first)) > 0
    free = play_in(shared)
    assert all(item.is_whole is None and not item.num_held_steps for record in free for item in record.rounds)
    assert without_time(free) == without_time(alone) != without_time(first)
    assert without_time(play_in(shared, grammar_states_of("mask", "two tokens"))) == without_time(first)


@pytest.mark.parametrize("num_tokens", [0, 1, 3, 5])
@pytest.mark.parametrize(("policy", "parser"), [("commit", "one token"), ("mask", "two tokens"), ("mask", "one token")])
def test_the_marker_at_every_place_of_a_round(policy, num_tokens, parser):
    options = {"method": Method.block, "num_slots": 25}
    expected = play(grammar_states_of(policy, parser, 100), num_tokens, **options)
    found = play(grammar_states_of(policy, parser, 100), num_tokens, graphs=True, overlaps=True, **options)
    assert without_time(found) == without_time(expected)
    # as each draft token, and as the bonus token
    assert {(num_tokens, place) for place in range(1, num_tokens + 2)} <= boundary_places(found)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("max_new_tokens", [1, 2, 9])
def test_requests_that_end_while_a_step_is_under_way(policy, max_new_tokens):
    """By an end of sequence, by their length and by their grammar, in steps of one graph, in deferred ones and in
    others; their slots are taken at once."""
    options = {"max_new_tokens": max_new_tokens, "eos_token_ids": frozenset({0}), "num_slots": 3}
    expected = play(grammar_states_of(policy, "two tokens"), 3, **options)
    found = play(grammar_states_of(policy, "two tokens"), 3, graphs=True, overlaps=True, **options)
    assert without_time(found) == without_time(expected)
    reasons = {record.finish_reason.value for record in found}
    assert reasons == ({"eos", "length"} if max_new_tokens < 9 else {"eos", "length", "grammar"})


@pytest.mark.parametrize("method", [Method.strict, Method.coupled], ids=lambda item: item.value)
def test_drafts_without_a_distribution(method):
    drafts = DraftSampling.coupled if method is Method.coupled else DraftSampling.greedy
    expected = play(grammar_states_of("mask", "two tokens"), 3, method=method, drafts=drafts)
    found = play(grammar_states_of("mask", "two tokens"), 3, method=method, drafts=drafts, graphs=True, overlaps=True)
    assert without_time(found) == without_time(expected)


def test_requests_of_every_kind_in_one_batch():
    """Parsers of each kind, policies of each kind, and requests without a grammar state, in the same slots."""

    def mixed():
        names = list(PARSERS)
        return [
            None
            if number % 5 == 4
            else grammar_state_of(POLICIES[number % 3], parser=PARSERS[names[number % len(names)]]())
            for number in range(NUM_REQUESTS)
        ]

    found = play(mixed(), 3, graphs=True, overlaps=True)
    assert without_time(found) == without_time(play(mixed(), 3))
    assert paths(found)[1] and all(
        (item.is_whole is None) == (int(record.prompt_id) % 5 == 4) for record in found for item in record.rounds
    )


@pytest.mark.parametrize("num_tokens", [0, 3])
def test_in_front_of_the_boundary_every_step_is_whole_and_nothing_is_thrown_away(num_tokens):
    grammar_states = [grammar_state_of("mask", parser=OneToken(-1)) for _ in range(NUM_REQUESTS)]
    found = play(grammar_states, num_tokens, graphs=True, overlaps=True)
    assert paths(found) == (sum(len(record.rounds) for record in found), 0, 0)
    # and it is what comes without a grammar state
    free = play([None] * NUM_REQUESTS, num_tokens, graphs=True, overlaps=True)
    assert [record.output_token_ids for record in found] == [record.output_token_ids for record in free]


def test_a_request_is_held_back_for_two_steps_at_most():
    """By the one in which its reasoning may end, and by the one that was under way when the host saw that."""
    found = play(grammar_states_of("mask", "one token"), 3, graphs=True, overlaps=True)
    deferred = [item.num_held_steps for record in found for item in record.rounds]
    assert max(deferred) == 2
    # one after another there is none under way
    found = play(grammar_states_of("mask", "one token"), 3, graphs=True, overlaps=False)
    assert max(item.num_held_steps for record in found for item in record.rounds) == 1


class WrongEnding(OneToken):
    """Says that reasoning ends with a token that it does not end with."""

    ending = (7,)


@pytest.mark.parametrize("num_tokens", [0, 3], ids=["as the last token", "as a draft token"])
def test_a_parser_that_is_wrong_about_its_ending_is_found_out(num_tokens):
    grammar_states = [grammar_state_of("mask", parser=WrongEnding(MARKER)) for _ in range(NUM_REQUESTS)]
    with pytest.raises(ValueError, match=r"WrongEnding\.ending: expected tokens that every end of reasoning ends with"):
        play(grammar_states, num_tokens, graphs=True, overlaps=True)


@settings(max_examples=12, deadline=None)
@given(
    policy=st.sampled_from(POLICIES),
    marker=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=MAX_ENDING_TOKENS + 1),
    answer=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=5),
    num_tokens=st.sampled_from([1, 2, 3, 5]),
    num_slots=st.integers(1, 5),
    eos_token_ids=st.sampled_from([frozenset(), frozenset({0})]),
    seed=st.integers(0, 99),
)
def test_random_markers_and_answers_over_random_rounds(
    policy, marker, answer, num_tokens, num_slots, eos_token_ids, seed
):
    def grammar_states():
        return [grammar_state_of(policy, chain(answer), SeveralTokens(marker)) for _ in range(8)]

    options = {"num_slots": num_slots, "eos_token_ids": eos_token_ids, "seed": seed}
    expected = play(grammar_states(), num_tokens, **options)
    assert without_time(play(grammar_states(), num_tokens, graphs=True, overlaps=True, **options)) == without_time(
        expected
    )


class WideMatcher(ToyMatcher):
    """Over a vocabulary of several words of bits, of which the first allows all there is."""

    def fill(self, words):
        words.zero_()
        super().fill(words)


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "mtp", "draft_model", "ngram"])
def test_real_layers_start_a_held_round_again_where_it_began(kind):
    """Would catch keys, values or states of a deferred round that reach what is drafted after it."""
    asked = tiny_requests(9, 6)
    free = tiny_engine(kind).run(asked, lambda record: None).requests
    outputs = {record.prompt_id: record.output_token_ids for record in free}

    def constrained(**options):
        # reasoning ends with a token that comes without a grammar, the third to the sixth
        requests = []
        for number, item in enumerate(asked):
            parser = OneToken(outputs[item.prompt_id][2 + number % 4])
            grammar_state = GrammarState(parser, WideMatcher(chain([9, 4, 1])), Mask())
            requests.append(replace(item, grammar_state=grammar_state))
        run = tiny_engine(kind, constrained=True, **options).run(requests, lambda record: None)
        assert run.num_invalid == 0
        return sorted(run.requests, key=lambda item: item.prompt_id)

    found = constrained(graphs=True, overlaps=True)
    assert without_time(found) == without_time(constrained())
    assert min(paths(found)) > 0
    assert all(record.finish_reason.value == "grammar" for record in found)
