"""The suffix automaton against a search through the texts, and the drafts that come of it."""

import numpy as np
import pytest
import torch

from harness.drafters.protocol import Batch
from harness.drafters.suffix import SuffixDrafter
from harness.drafters.suffix_automaton import SuffixAutomaton
from kernels.contract import Sampling, Streams
from kernels.core import reference_core
from kernels.methods import DraftSampling, VerificationMethod
from tests.toy_markov import toy_engine, toy_requests


def ends_of(suffix, texts):
    """Where it ends: text, and index of the token behind it."""
    return [
        (number, at + len(suffix))
        for number, text in enumerate(texts)
        for at in range(len(text) - len(suffix) + 1)
        if text[at : at + len(suffix)] == suffix
    ]


@pytest.mark.parametrize("num_symbols", [1, 2, 5])
def test_matches_agree_with_a_search_while_the_text_grows(num_symbols):
    """Would catch: a clone that loses transitions or its place, a link to a suffix that is not the longest."""
    generator = np.random.default_rng(num_symbols)
    automaton, matched = SuffixAutomaton(), []
    number = automaton.begin()
    for _ in range(160):
        automaton.append(number, int(generator.integers(num_symbols)))
        text, match = automaton.texts[number], automaton.longest_match(number)
        occurring = [n for n in range(1, len(text)) if len(ends_of(text[len(text) - n :], [text])) > 1]
        assert match.length == max(occurring, default=0)
        assert text[match.following - match.length : match.following] == text[len(text) - match.length :]
        assert match.following < len(text)
        matched.append(match.length)
    assert max(matched) > 3


@pytest.mark.parametrize("num_symbols", [2, 4])
def test_matches_in_texts_that_grow_in_turns_agree_with_a_search(num_symbols):
    """One text is the beginning of another. Would catch: a state that serves two texts with the length of the longer, a
    clone that takes the place of a whole text, a match that nothing follows, one that is not the longest."""
    generator = np.random.default_rng(num_symbols)
    automaton, first_ends, from_others = SuffixAutomaton(), {}, 0
    numbers = [automaton.begin() for _ in range(4)]
    for turn in range(240):
        number = numbers[int(generator.integers(3)) if turn < 160 else 3]
        texts = automaton.texts
        is_copy = number == 3 and len(texts[3]) < min(20, len(texts[0]))
        automaton.append(number, texts[0][len(texts[3])] if is_copy else int(generator.integers(num_symbols)))
        text, match = texts[number], automaton.longest_match(number)
        for length in range(1, len(text) + 1):
            suffix = tuple(text[len(text) - length :])
            first_ends.setdefault(suffix, (number, len(text)))
        followed = [
            length
            for length in range(1, len(text) + 1)
            if (place := first_ends[tuple(text[len(text) - length :])])[1] < len(texts[place[0]])
        ]
        assert match.length == max(followed, default=0)
        if match.length:
            found = texts[match.text]
            assert found[match.following - match.length : match.following] == text[len(text) - match.length :]
            assert match.following < len(found)
            from_others += match.text != number
    assert from_others > 100 and automaton.num_tokens == sum(map(len, automaton.texts)) == 240


def batch_of(texts, num_tokens=4):
    """Rows of the given texts, in slots 0, 1, ..."""
    numbers = torch.ones(len(texts))
    token_ids = torch.zeros(len(texts), 32, dtype=torch.int64)
    for row, text in zip(token_ids, texts, strict=True):
        row[: len(text)] = torch.tensor(text)
    lengths = torch.tensor([len(text) for text in texts])
    streams = Streams(torch.zeros_like(lengths), lengths, torch.zeros_like(lengths))
    sampling = Sampling(numbers, numbers, numbers, numbers)
    return Batch(
        slice(0, len(texts)), len(texts), num_tokens, token_ids, sampling, streams, reference_core(), int(lengths.max())
    )


def proposals(drafter, texts, num_tokens=4):
    drafts = drafter.propose(batch_of(texts, num_tokens))
    counts = drafts.num_draft_tokens.tolist()
    return [row[:count].tolist() for row, count in zip(drafts.token_ids, counts, strict=True)]


@pytest.mark.parametrize(
    ("text", "shortest", "factor", "expected"),
    [
        pytest.param([1, 2, 3, 9, 8, 1, 2], 2, 1.0, [3, 9], id="as many as were matched"),
        pytest.param([1, 2, 3, 9, 8, 1, 2], 2, 2.0, [3, 9, 8, 1], id="times the factor"),
        pytest.param([1, 2, 3, 9, 8, 1, 2], 3, 2.0, [], id="a suffix below the shortest is not looked up"),
        pytest.param([5, 6, 7, 5, 6, 7, 5], 2, 1.0, [6, 7, 5, 6], id="a text that repeats itself goes on doing so"),
        pytest.param([1, 2, 3, 4], 1, 4.0, [], id="no occurrence, no draft"),
        pytest.param([4], 1, 4.0, [], id="a row without a request"),
    ],
)
def test_depth_follows_the_suffix(text, shortest, factor, expected):
    assert proposals(SuffixDrafter(shortest, factor), [text]) == [expected]


def test_slots_are_used_again_and_moved():
    """Would catch: a row that goes on with the text of the request before, or of the slot's earlier owner."""
    drafter = SuffixDrafter(2, 1.0)
    first, second = [1, 2, 7, 1, 2], [30, 31, 32]
    assert proposals(drafter, [first, second]) == [[7, 1], []]
    drafter.move(1, 0)
    assert proposals(drafter, [[*second, 30, 31], [40, 41]]) == [[32, 30], []]
    assert proposals(drafter, [[50, 51], [40, 41, 40, 41]]) == [[], [40, 41]]
    # nothing of another request, in its slot before or beside it
    assert proposals(drafter, [[9, 40, 41], [1, 2]]) == [[], []]


def test_a_history_finds_what_other_requests_wrote_until_a_block_ends():
    """Would catch: texts of other slots that are not searched, or not once their request has left; a proposal that
    goes on beyond the end of another's text; a block that depends on the one before."""
    drafter = SuffixDrafter(2, 4.0, history=100)
    assert proposals(drafter, [[1, 2, 3, 4, 5], [9, 2, 3]]) == [[], [4, 5]]
    assert proposals(drafter, [[7, 7, 7, 8], [9, 2, 3, 4]]) == [[], [5]]
    assert proposals(drafter, [[6, 3, 4], [9, 2, 3, 4, 0]])[0] == [5]
    drafter.forget()
    assert proposals(drafter, [[6, 3, 4], [1, 1]]) == [[], []]


def test_a_history_that_is_full_keeps_what_is_under_way():
    """Would catch memory that grows with the run, and a request that loses its own text."""
    drafter = SuffixDrafter(2, 1.0, history=6)
    assert proposals(drafter, [[1, 2, 3, 4], [5, 6, 7]]) == [[], []]
    # one more request: those that ended go
    assert proposals(drafter, [[8, 1, 2], [5, 6, 7, 5, 6]]) == [[], [7, 5]]
    assert proposals(drafter, [[8, 1, 2, 6, 7], [5, 6, 7, 5, 6]])[0] == [5, 6]


def test_a_block_begins_without_what_ran_before_it():
    """Would catch warm-up requests, which are the first of the block, whose answers the measured ones find again."""
    drafter = SuffixDrafter(2, 2.0, history=10_000)
    target = torch.tensor([[0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.8, 0.1, 0.1]])
    engine = toy_engine(
        *(target, target, VerificationMethod.probabilistic, DraftSampling.greedy),
        num_speculative_tokens=4,
        max_new_tokens=16,
        num_slots=4,
        drafter=drafter,
    )
    runs = [engine.run(toy_requests(12), lambda record: None).requests for _ in range(2)]
    first, second = (
        [(item.num_proposed_tokens, item.num_accepted_tokens) for record in records for item in record.rounds]
        for records in runs
    )
    assert first == second and sum(accepted for _, accepted in first) > 50
