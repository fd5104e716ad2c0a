"""Grammars through llguidance, and the validation of answers by another library."""

import json
import sys

import pytest
import torch

pytest.importorskip("llguidance", reason="needs the extra grammar")

from transformers import AutoTokenizer

from harness.config.constraint import GrammarKind, constraint_of
from harness.engine.constraint.grammar import GrammarCompiler
from harness.engine.constraint.grammar_text import UnusableGrammarError, check_grammar
from harness.engine.constraint.masks import Masks
from harness.engine.constraint.matcher import Matcher, Reach, Walk
from harness.engine.constraint.validity import is_valid
from harness.models.zoo import zoo_path
from kernels.reference.token_mask import allowed_tokens, words_of

VOCAB_SIZE = 6144
END = 4
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
)
GRAMMARS = {
    GrammarKind.json_schema: (SCHEMA, '{"a": 12, "b": "x"}', '{"a": "12"'),
    GrammarKind.regex: (r"[0-9]{2}:[0-9]{2}", "12:30", "12.30"),
    GrammarKind.lark: ('start: "yes" | "no" ", because " /[a-z ]+/ "."', "no, because it rains.", "maybe"),
}


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(zoo_path("target"))


@pytest.fixture(scope="module")
def compiler(tokenizer):
    return GrammarCompiler(tokenizer, VOCAB_SIZE, {END, 0})


def ids_of(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False)


def allowed(matcher):
    masks = Masks(1, VOCAB_SIZE)
    masks.add(matcher)
    return allowed_tokens(masks.words, torch.arange(VOCAB_SIZE))[0].nonzero()[:, 0].tolist()


@pytest.mark.parametrize("kind", GRAMMARS, ids=lambda kind: kind.value)
def test_an_answer_is_followed_to_its_end(kind, compiler, tokenizer):
    grammar, good, bad = GRAMMARS[kind]
    matcher = compiler.matcher(kind, grammar)
    ids = ids_of(tokenizer, good)
    for number, token in enumerate(ids):
        assert not matcher.is_complete and token in allowed(matcher)
        assert matcher.accept([token]) == 1, number
    assert matcher.is_complete
    fresh = compiler.matcher(kind, grammar)
    wrong = ids_of(tokenizer, bad)
    assert fresh.accept(wrong) < len(wrong)


@pytest.mark.parametrize("from_threads", [1, 10_000], ids=["on threads", "in turn"])
def test_masks_that_are_written_together_are_those_written_one_by_one(from_threads, compiler, tokenizer, monkeypatch):
    """Would catch: a mask in another's row, one that is not written, one too narrow, a matcher that has moved, and a
    walk that goes on behind a refused token or the end of an answer."""
    monkeypatch.setattr("harness.engine.constraint.grammar.MIN_MASKS_FOR_THREADS", from_threads)
    walks, num_masks = [], 0
    for begun, with_end in ((0, True), (3, False), (1, True)):
        for kind, (grammar, good, _) in GRAMMARS.items():
            matcher, ids = compiler.matcher(kind, grammar), ids_of(tokenizer, good)
            matcher.accept(ids[:begun])
            # the end, and after it what is never looked at; or a token that is refused, and another
            drafts = [*ids[begun:], END, 99] if with_end else [ids[begun], END, 99]
            for tokens in (drafts, [])[: 2 if begun else 1]:
                walks.append(Walk(matcher, num_masks, tokens))
                num_masks += 1 + len(tokens)
    before = [allowed(walk.matcher) for walk in walks]
    poison = torch.full((num_masks, VOCAB_SIZE // 32), 0x55AA55AA, dtype=torch.int32)
    together, one_by_one = poison.clone(), poison.clone()
    reaches = walks[0].matcher.fill_together(walks, together)
    assert Matcher.fill_together(walks[0].matcher, walks, one_by_one) == reaches
    numbers = [
        walk.first + place for walk, reach in zip(walks, reaches, strict=True) for place in range(reach.num_masks)
    ]
    assert torch.equal(together[numbers], one_by_one[numbers]) and len(numbers) < num_masks
    assert not (together[numbers] == poison[numbers]).all(dim=1).any()
    assert [allowed(walk.matcher) for walk in walks] == before


@pytest.mark.parametrize("from_threads", [1, 10_000], ids=["on threads", "in turn"])
def test_a_matcher_that_fails_is_named_and_leaves_the_others_their_masks(
    from_threads, compiler, tokenizer, monkeypatch
):
    """Would catch an answer that goes on unconstrained, and masks of others that are missing or moved."""
    monkeypatch.setattr("harness.engine.constraint.grammar.MIN_MASKS_FOR_THREADS", from_threads)
    ids = ids_of(tokenizer, GRAMMARS[GrammarKind.json_schema][1])
    matchers = [compiler.matcher(GrammarKind.json_schema, SCHEMA) for _ in range(3)]
    matchers[1]._matcher.consume_token(99)
    walks = [Walk(matcher, 4 * row, ids[:3]) for row, matcher in enumerate(matchers)]
    words = torch.zeros(12, VOCAB_SIZE // 32, dtype=torch.int32)
    with pytest.raises(RuntimeError, match="that can be followed, llguidance says"):
        matchers[0].fill_together(walks, words)
    alone = torch.zeros(4, VOCAB_SIZE // 32, dtype=torch.int32)
    fresh = compiler.matcher(GrammarKind.json_schema, SCHEMA)
    assert fresh.fill_together([Walk(fresh, 0, ids[:3])], alone) == [Reach(3, False)]
    assert torch.equal(words[:4], alone) and torch.equal(words[8:], alone)
    assert [matchers[row].accept(ids) for row in (0, 2)] == [len(ids)] * 2


def test_what_is_taken_back_is_as_if_it_had_not_been(compiler, tokenizer):
    matcher = compiler.matcher(GrammarKind.json_schema, SCHEMA)
    before = allowed(matcher)
    for _ in range(3):
        ids = ids_of(tokenizer, GRAMMARS[GrammarKind.json_schema][1])
        assert matcher.accept([*ids, 99]) == len(ids)
        matcher.rollback(len(ids))
        assert allowed(matcher) == before and not matcher.is_complete


def test_answers_do_not_share_a_matcher(compiler, tokenizer):
    first, second = (compiler.matcher(GrammarKind.json_schema, SCHEMA) for _ in range(2))
    first.accept(ids_of(tokenizer, '{"a": 1'))
    assert allowed(second) == allowed(compiler.matcher(GrammarKind.json_schema, SCHEMA)) != allowed(first)


def test_the_end_of_sequence_is_allowed_where_the_answer_is_whole(compiler, tokenizer):
    matcher = compiler.matcher(GrammarKind.regex, "[0-9]+")
    assert END not in allowed(matcher) and matcher.accept([END]) == 0
    matcher.accept(ids_of(tokenizer, "7"))
    # another digit may follow, so the grammar is not complete
    assert {END, 0} <= set(allowed(matcher)) and not matcher.is_complete
    assert matcher.accept([END]) == 1 and matcher.is_complete


def test_a_vocabulary_padded_beyond_the_tokenizer(tokenizer):
    padded = GrammarCompiler(tokenizer, VOCAB_SIZE + 63, {END}).matcher(GrammarKind.regex, "[^a]*")
    masks = Masks(1, VOCAB_SIZE + 63)
    masks.add(padded)
    assert not allowed_tokens(masks.words, torch.arange(VOCAB_SIZE, VOCAB_SIZE + 63)).any()


def test_an_answer_ends_with_the_tokenizers_own_end_where_it_has_none_of_the_models(tokenizer):
    matcher = GrammarCompiler(tokenizer, 2 * VOCAB_SIZE, {2 * VOCAB_SIZE - 1}).matcher(GrammarKind.regex, "[0-9]+")
    matcher.accept(ids_of(tokenizer, "7"))
    assert matcher.accept([tokenizer.eos_token_id]) == 1 and matcher.is_complete


@pytest.mark.parametrize(
    ("kind", "grammar"),
    [
        (GrammarKind.regex, "("),
        (GrammarKind.lark, "start: missing"),
        (GrammarKind.json_schema, '{"type": "array", "uniqueItems": true}'),
        (GrammarKind.json_schema, "{"),
    ],
    ids=["regex", "lark", "a schema with a keyword it does not know", "no JSON"],
)
def test_a_grammar_that_cannot_be_followed_is_refused(kind, grammar, compiler):
    with pytest.raises(UnusableGrammarError, match="that llguidance can follow"):
        compiler.matcher(kind, grammar)


def test_without_the_library_the_error_says_what_to_install(tokenizer, monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ValueError, match=r"pip install -e '\.\[grammar\]'"):
        GrammarCompiler(tokenizer, VOCAB_SIZE, {END}).matcher(GrammarKind.regex, "a")
    monkeypatch.setitem(sys.modules, "jsonschema.validators", None)
    with pytest.raises(ValueError, match=r"pip install -e '\.\[grammar\]'"):
        is_valid(GrammarKind.json_schema, SCHEMA, "{}")


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (GrammarKind.json_schema, '{"a": 1, "b": "x"}', True),
        (GrammarKind.json_schema, '{"a": 1, "b": "z"}', False),
        (GrammarKind.json_schema, '{"{"a": 1, "b": "x"}', False),
        (GrammarKind.json_schema, "", False),
        (GrammarKind.regex, "12:30", True),
        (GrammarKind.regex, "12:3", False),
        (GrammarKind.lark, "yes", None),
    ],
    ids=["valid", "not in the enum", "doubled beginning", "empty", "regex", "regex cut short", "lark has no validator"],
)
def test_answers_are_judged_by_another_library(kind, text, expected):
    assert is_valid(kind, GRAMMARS[kind][0], text) is expected


def test_words_of_some_tokens_allow_just_these():
    ids = torch.tensor([0, 31, 32, 63, 95, 31])
    words = words_of(ids, 100)
    assert allowed_tokens(words[None], torch.arange(100))[0].nonzero()[:, 0].tolist() == [0, 31, 32, 63, 95]


def test_a_grammar_of_another_kind_needs_its_text():
    with pytest.raises(ValueError, match="the text of a grammar with"):
        constraint_of("mask", kind=GrammarKind.regex)


def test_a_grammar_is_checked_without_a_tokenizer_and_the_whole_reason_is_said():
    """Would catch a message that stops before the reason, and a bad grammar that is found only beside a model."""
    check_grammar(GrammarKind.regex, "[0-9]+")
    with pytest.raises(UnusableGrammarError, match=r"Python's re can read, it says: bad escape"):
        check_grammar(GrammarKind.regex, r"\p{Lu}+")  # llguidance knows it
    with pytest.raises(UnusableGrammarError, match="unclosed character class") as caught:
        check_grammar(GrammarKind.regex, "[0-9")
    assert "\n" not in str(caught.value)
    with pytest.raises(UnusableGrammarError, match="uniqueItems"):
        check_grammar(GrammarKind.json_schema, '{"type": "array", "uniqueItems": true}')
