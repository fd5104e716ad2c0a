"""Reasoning parsers: the end is found wherever rounds cut the marker, and nothing but the tokens of a round is read."""

from itertools import pairwise, product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from harness.engine.constraint.parsers.harmony import FinalChannel
from harness.engine.constraint.parsers.markers import AnyToken, OneToken, SeveralTokens
from harness.engine.constraint.parsers.outside_code_block import OutsideCodeBlock
from harness.engine.constraint.parsers.parser import ReasoningParser
from harness.engine.constraint.parsers.text_markers import TextMarkers
from harness.engine.constraint.registry import build_parser

pytestmark = pytest.mark.fast

ZOO = Path(__file__).parents[2] / "harness" / "models" / "zoo" / "target"
TEXTS = {5: "```", 6: "``", 7: "`", 8: "```json", 9: "a`b"}
SPELT = {1: b"<a", 2: b"a", 3: b">", 5: b"<", 6: b"a></b", 7: b" > ", 8: b"b>"}
PARSERS = {
    "one token": OneToken(3),
    "one of two tokens": AnyToken((3, 8)),
    "text": TextMarkers(["<a>", "</b>"], SPELT),
    "channels": FinalChannel(1, 3, {2: b"fi", 5: b"nal", 6: b"final", 7: b" <|x|>json", 8: b"finally"}),
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


class Vocabulary:
    """As much of a tokenizer as a parser asks for: special tokens and byte-level ones, numbered from 10."""

    def __init__(self, added, others):
        self.added, self.tokens = added, [*added, *others]

    def get_vocab(self):
        return {token: number for number, token in enumerate(self.tokens, start=10)}

    def get_added_vocab(self):
        return {token: self.get_vocab()[token] for token in self.added}

    def ids(self, *tokens):
        return [self.get_vocab()[token] for token in tokens]


HARMONY = Vocabulary(
    ["<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|constrain|>"],
    ["analysis", "assistant", "final", "fin", "al", "comment", "ary", "\u0120to", "=f", "json", "\u0120", "ly", "{"],
)
ANALYSIS = ("<|channel|>", "analysis", "<|message|>", "final", "<|end|>", "<|start|>", "assistant")


@pytest.mark.parametrize(
    ("header", "ends"),
    [
        (("final",), True),
        (("fin", "al"), True),
        (("final", "\u0120", "<|constrain|>", "json"), True),
        (("final", "<|constrain|>", "json"), True),
        (("comment", "ary", "\u0120to", "=f", "<|constrain|>", "json"), False),
        (("analysis",), False),
        (("fin", "al", "ly"), False),
        (("comment", "ary", "\u0120", "final"), False),
    ],
    ids=lambda value: "".join(value) if isinstance(value, tuple) else "",
)
def test_of_gpt_oss_the_channel_final_is_the_answer_however_its_header_is_cut(header, ends):
    """Would catch a header with a constraint that is missed, and a word of the analysis that counts as a channel."""
    parser = build_parser("harmony", HARMONY)
    tokens = HARMONY.ids(*ANALYSIS, "<|channel|>", *header, "<|message|>", "{", "final", "<|message|>")
    expected = len(ANALYSIS) + len(header) + 1 if ends else None
    assert end_by_rounds(parser, [tokens]) == end_by_rounds(parser, [[token] for token in tokens]) == expected
    assert parser.ending == tuple(HARMONY.ids("<|message|>"))


@pytest.mark.parametrize("name", ["qwen3", "glm5"])
def test_a_call_of_a_tool_within_reasoning_ends_it(name):
    vocabulary = Vocabulary(["</think>", "<tool_call>", "</tool_call>"], ["so", "{"])
    parser = build_parser(name, vocabulary)
    called, closed = vocabulary.ids("so", "<tool_call>", "{"), vocabulary.ids("so", "</think>", "<tool_call>", "{")
    assert end_by_rounds(parser, [called]) == end_by_rounds(parser, [closed]) == 1
    assert end_by_rounds(build_parser("glm", vocabulary), [called]) is None
    assert parser.ending == ()


DSML = "\uff5cDSML\uff5c"
DEEPSEEK = Vocabulary(["</think>", DSML], ["<", "function", "_calls", "tool", ">", ">\u010a", "so", "<inv", "oke"])


@pytest.mark.parametrize(
    ("tokens", "end"),
    [
        (("so", "</think>", "so"), 1),
        (("so", "<", DSML, "function", "_calls", ">", "so"), 5),
        (("<", "<", DSML, "tool", "_calls", ">\u010a", "so"), 5),
        (("<", DSML, "<inv", "oke", ">", "so"), None),
        (("<", "function", "_calls", ">", "so"), None),
    ],
    ids=["think", "V3.2", "V4, behind a false start and with a line break", "another tag", "without DSML"],
)
def test_deepseek_s_block_of_calls_is_found_in_the_text_that_tokens_cut(tokens, end):
    """Would catch a marker that must begin with a token, and one whose last token holds a line break."""
    parser = build_parser("deepseek", DEEPSEEK)
    ids = DEEPSEEK.ids(*tokens)
    assert end_by_rounds(parser, [ids]) == end_by_rounds(parser, [[token] for token in ids]) == end


@given(
    text=st.text("<a>/b ", max_size=12),
    cuts=st.lists(st.integers(1, 11), max_size=5),
)
def test_a_text_marker_is_found_where_a_search_of_the_text_finds_it(text, cuts):
    """Over every way of cutting. Would catch a state that keeps too little of what began a marker."""
    ends = sorted({*(cut for cut in cuts if cut < len(text)), len(text)}) if text else []
    pieces = [text[start:stop] for start, stop in pairwise([0, *ends])]
    parser = TextMarkers(["<a>", "</b>"], {number: piece.encode() for number, piece in enumerate(pieces)})
    places = [place + len(marker) for marker in ("<a>", "</b>") if (place := text.find(marker)) >= 0]
    expected = None if not places else next(number for number, end in enumerate(ends) if end >= min(places))
    assert end_by_rounds(parser, [[number] for number in range(len(pieces))]) == expected


def test_without_reasoning_the_answer_begins_at_once():
    assert build_parser("none", HARMONY).start() is None


def one_of_ones_own(tokenizer):
    return OneToken(tokenizer.get_vocab()["analysis"])


def test_a_parser_of_ones_own_is_found_by_its_path():
    assert build_parser("tests.engine.test_constraint_parsers:one_of_ones_own", HARMONY).marker_id == 15


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
        build_parser(name, HARMONY)


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
