"""Reasoning parsers: the end is found wherever rounds cut the marker, and nothing but the tokens of a round is read."""

from itertools import pairwise, product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from harness.engine.constraint.parsers.markers import OneToken, SeveralTokens
from harness.engine.constraint.parsers.outside_code_block import OutsideCodeBlock
from harness.engine.constraint.parsers.parser import ReasoningParser
from harness.engine.constraint.registry import build_parser

pytestmark = pytest.mark.fast

ZOO = Path(__file__).parents[2] / "harness" / "models" / "zoo" / "target"
TEXTS = {5: "```", 6: "``", 7: "`", 8: "```json", 9: "a`b"}
PARSERS = {
    "one token": OneToken(3),
    "several tokens": SeveralTokens((3, 1, 3, 3)),
    "outside of a code block": OutsideCodeBlock(OneToken(3), TEXTS),
    "several tokens outside of a code block": OutsideCodeBlock(SeveralTokens((3, 1)), TEXTS),
}


def end_by_rounds(parser: ReasoningParser, rounds: list[list[int]]) -> int | None:
    """Index of the token that ends reasoning in the whole sequence, one round after the other."""
    state, start = parser.start(), 0
    for delta in rounds:
        end = parser.end_index_in(delta, state)
        if not parser.may_end_in(delta):
            assert end is None, "may_end_in overlooked an end"
        if end is not None:
            return start + end
        state, start = parser.after(delta, state), start + len(delta)
    return None


def test_marker_of_one_token():
    assert end_by_rounds(PARSERS["one token"], [[1, 2], [4, 3, 3]]) == 3
    assert end_by_rounds(PARSERS["one token"], [[1, 2], [4]]) is None


@pytest.mark.parametrize(
    "rounds",
    [[[3, 1, 3, 3]], [[3], [1, 3, 3]], [[3, 1], [3, 3]], [[3, 1, 3], [3]], [[3], [1], [3, 3]], [[3], [1], [3], [3]]],
    ids=["in one round", "after one", "after two", "after three", "over three rounds", "over four rounds"],
)
def test_marker_of_several_tokens_split_over_rounds(rounds):
    assert end_by_rounds(PARSERS["several tokens"], rounds) == 3


def test_a_false_start_runs_into_the_marker():
    """3 1 [3 1 3 3]: a parser that starts anew after a mismatch misses it."""
    assert end_by_rounds(PARSERS["several tokens"], [[3, 1, 3], [1, 3, 3]]) == 5


def test_the_first_of_two_markers_ends_reasoning():
    assert end_by_rounds(PARSERS["several tokens"], [[3, 1, 3, 3, 3, 1, 3, 3]]) == 3


@pytest.mark.parametrize(
    ("tokens", "end"),
    [
        pytest.param([5, 3, 5, 3], 3, id="quoted in a block, then real"),
        pytest.param([6, 7, 3, 7, 7, 7, 3], 6, id="fences of several tokens"),
        pytest.param([8, 3, 3], None, id="a block that never ends"),
        pytest.param([7, 3], 1, id="one backtick is no fence"),
        pytest.param([9, 9, 3], 2, id="backticks of inline code"),
        pytest.param([5, 7, 3, 5, 3], 4, id="a fence of four backticks"),
    ],
)
def test_marker_text_quoted_in_a_code_block_does_not_count(tokens, end):
    parser = PARSERS["outside of a code block"]
    assert end_by_rounds(parser, [tokens]) == end_by_rounds(parser, [[token] for token in tokens]) == end


@pytest.mark.parametrize("name", PARSERS)
@given(data=st.data(), tokens=st.lists(st.sampled_from([1, 2, 3, 5, 6, 7, 8]), max_size=24))
def test_once_per_round_and_once_per_token_agree(name, data, tokens):
    """Would catch a state that forgets part of a marker or of a fence at the end of a round."""
    parser = PARSERS[name]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=6)))
    rounds = [tokens[start:stop] for start, stop in pairwise([0, *cuts, len(tokens)])]
    assert end_by_rounds(parser, rounds) == end_by_rounds(parser, [[token] for token in tokens])


@pytest.mark.parametrize(
    "marker",
    [(1,), (1, 1, 1, 2), (1, 2, 1, 1), (1, 2, 1, 3), (1, 1, 2, 1, 1), (1, 1, 2, 1, 1, 3, 2)],
    ids=lambda marker: "".join(map(str, marker)),
)
def test_the_automaton_finds_what_a_plain_search_finds(marker):
    """Over every sequence of seven tokens that a part of the marker or another token follows.

    Would catch an automaton that falls back once after a mismatch: of 1 1 1 2, with 1 1 1 3 read, nothing is left.
    """
    parser, length = SeveralTokens(marker), len(marker)
    for first in product((1, 2, 3), repeat=7):
        tokens = [*first, *marker[1:]]
        places = [end for end in range(length - 1, len(tokens)) if tuple(tokens[end + 1 - length : end + 1]) == marker]
        assert end_by_rounds(parser, [tokens]) == (places[0] if places else None)


def test_looking_ahead_does_not_move_the_state():
    parser = PARSERS["several tokens"]
    state = parser.after([3, 1], parser.start())
    assert parser.end_index_in([3, 3], state) == 1
    assert parser.end_index_in([3, 3], state) == 1
    assert parser.end_index_in([2, 3], state) is None


@pytest.mark.parametrize("name", ["zoo", "qwen3", "glm", "think_outside_code"])
def test_parsers_are_found_by_name(name):
    tokenizer = AutoTokenizer.from_pretrained(ZOO)
    ids = tokenizer.encode("<think>1 + 1 = 2</think>{", add_special_tokens=False)
    parser = build_parser(name, tokenizer)
    end = end_by_rounds(parser, [ids])
    assert tokenizer.decode(ids[end + 1 :]) == "{"
    quoted = tokenizer.encode("```\n</think>\n```</think>{", add_special_tokens=False)
    rest = tokenizer.decode(quoted[end_by_rounds(parser, [quoted]) + 1 :])
    assert rest == ("{" if name == "think_outside_code" else "\n```</think>{")


class HarmonyTokenizer:
    """As much of a tokenizer as a parser asks for."""

    def get_vocab(self):
        return {"<|channel|>": 10, "final": 11, "<|message|>": 12, "analysis": 13}


def test_the_harmony_marker_is_several_tokens():
    parser = build_parser("harmony", HarmonyTokenizer())
    assert end_by_rounds(parser, [[10, 13, 12, 1], [10], [11, 12, 5]]) == 6


def test_without_reasoning_the_answer_begins_at_once():
    assert build_parser("none", HarmonyTokenizer()).start() is None


def one_of_ones_own(tokenizer):
    return OneToken(tokenizer.get_vocab()["analysis"])


def test_a_parser_of_ones_own_is_found_by_its_path():
    assert build_parser("tests.engine.test_constraint_parsers:one_of_ones_own", HarmonyTokenizer()).marker_id == 13


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("qwen4", "expected one of zoo, qwen3"),
        ("zoo", "expected a tokenizer with the token </think>"),
        ("tests.no_such:thing", "can be imported"),
    ],
    ids=["no such name", "no such token", "no such module"],
)
def test_a_parser_that_cannot_be_is_refused(name, message):
    with pytest.raises(ValueError, match=message):
        build_parser(name, HarmonyTokenizer())


class CountedTokens(list):
    """Counts how often its items are looked at."""

    num_touched = 0

    def __iter__(self):
        for item in super().__iter__():
            self.num_touched += 1
            yield item

    def __contains__(self, item):
        self.num_touched += len(self)
        return super().__contains__(item)

    def index(self, *arguments):
        self.num_touched += len(self)
        return super().index(*arguments)


@pytest.mark.parametrize("name", PARSERS)
def test_a_round_costs_the_same_at_any_length_of_the_context(name):
    """The review's second finding was a copy of the history: here nothing but the tokens of the round is touched."""
    parser = PARSERS[name]
    state, touched = parser.start(), set()
    for _ in range(300):
        delta = CountedTokens([1, 2, 4, 1])
        parser.may_end_in(delta)
        parser.end_index_in(delta, state)
        state = parser.after(delta, state)
        touched.add(delta.num_touched)
    assert max(touched) <= 4 * 4 and len(touched) == 1
    assert len(repr(state)) < 40
