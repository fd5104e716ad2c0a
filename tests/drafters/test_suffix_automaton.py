"""The suffix automaton against a search through the texts, and the drafts that come of it."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from harness.drafters.protocol import Batch
from harness.drafters.suffix_automaton import SuffixAutomaton
from harness.drafters.suffix_run import SuffixDrafter
from kernels.contract import Sampling, Streams
from kernels.core import reference_core
from kernels.methods import DraftSampling, VerificationMethod
from tests.support.toy_markov import toy_engine, toy_requests, transitions


class ByRule:
    """The occurrences that count, by the rule, among all substrings of the texts."""

    def __init__(self, num_texts):
        self.texts = [[] for _ in range(num_texts)]
        self.num_occurrences = Counter()
        self.counting = {}
        """By substring: text, and index of the token behind the occurrence there."""

    def append(self, number, token):
        text = self.texts[number]
        place, counts = (number, len(text)), [self.num_occurrences[suffix] for suffix in suffixes_of(text)]
        # of the whole text, and of the longest suffix that has occurred elsewhere; shorter ones that occur as often
        # occur at the same places
        looked_up = counts[:1] + [count for count in counts if count > counts[0]][:1]
        for suffix, count in zip(suffixes_of(text), counts, strict=True):
            if count in looked_up or suffix not in self.counting:
                self.counting[suffix] = place
        text.append(token)
        self.num_occurrences.update(suffixes_of(text))

    def longest_match(self, number):
        found = next((suffix for suffix in suffixes_of(self.texts[number]) if suffix in self.counting), ())
        return (len(found), *self.counting[found]) if found else (0, 0, 0)


def suffixes_of(text):
    """The longest first."""
    return [tuple(text[start:]) for start in range(len(text))]


@pytest.mark.parametrize("num_symbols", [1, 2, 3, 5])
@pytest.mark.parametrize("num_texts", [1, 5, 60])
def test_matches_agree_with_a_search_while_texts_grow(num_symbols, num_texts):
    """Texts grow in turns, some end, one is the beginning of another. Would catch: a match that is not the longest one
    with a continuation, as where the end of another text hides it; an occurrence that does not count; a clone that
    loses transitions or its place; a state that serves two texts with the length of the longer."""
    generator = np.random.default_rng(num_symbols)
    automaton, reference, lengths, places = SuffixAutomaton(), ByRule(num_texts), [], set()
    numbers = [automaton.begin() for _ in range(num_texts)]
    for turn in range(240):
        # three grow at a time
        number = numbers[min(turn * num_texts // 240 + int(generator.integers(3)), num_texts - 1)]
        text, first = automaton.texts[number], automaton.texts[0]
        is_copy = number and number == num_texts - 1 and len(text) < min(20, len(first))
        token = first[len(text)] if is_copy else int(generator.integers(num_symbols))
        automaton.append(number, token)
        reference.append(number, token)
        match = automaton.longest_match(number)
        assert match == reference.longest_match(number)
        if match.length:
            found = automaton.texts[match.text]
            assert found[match.following - match.length : match.following] == text[len(text) - match.length :]
            assert match.following < len(found)
        lengths.append(match.length)
        places.add(match.text)
    assert max(lengths) > 3 and len(places) > num_texts / 4
    assert automaton.texts == reference.texts and automaton.num_tokens == 240


def matches(*texts):
    """What is known of the end of the last of texts that were read one after the other, and what follows."""
    automaton = SuffixAutomaton()
    for text in texts:
        number = automaton.begin()
        for token in text:
            automaton.append(number, token)
    match = automaton.longest_match(number)
    return match.length, automaton.continuation(number, match, 1) if match.length else []


def test_the_occurrence_that_counts():
    """Would catch: the end of another text that hides where its last tokens went on; a suffix that goes on for good as
    where it first occurred."""
    assert matches([3, 4, 5, 6], [9, 4, 5, 6, 7, 8], [1, 4, 5, 6]) == (3, [7])
    assert matches([4, 5, 6], [3, 4, 5, 6], [1, 4, 5, 6]) == (0, [])
    assert matches([1, 2, 3], [8, 2, 3], [9, 1, 2, 3, 4], [7, 2, 3]) == (2, [4])
    assert matches([7, 8, 0], [7, 8, 1], [7, 8]) == (2, [1])
    # where a longer suffix is looked up, the shorter one within it keeps its place
    assert matches([5, 8, 0], [6, 8, 1], [2, 5, 8, 2], [3, 8]) == (1, [1])


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
    drafter.begin(0)
    assert proposals(drafter, [[50, 51, 52, 53, 54, 30, 31], [40, 41, 40, 41]]) == [[], [40, 41]]
    # a shorter text is another one
    assert proposals(drafter, [[9, 40, 41], [1, 2]]) == [[], []]
    assert proposals(drafter, [[9, 40, 41, 50, 51], [1, 2]]) == [[], []]


class Tokens(torch.Tensor):
    """Counts the numbers that leave it for the host."""

    num_read = 0

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function in (torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.item):
            Tokens.num_read += args[0].numel()
        return super().__torch_function__(function, types, args, kwargs or {})


@pytest.mark.parametrize("history", [0, 10_000])
def test_a_token_is_read_once(history):
    """Would catch a proposal whose cost grows with the text: one that copies it, compares it or reads it again."""
    generator = np.random.default_rng(0)
    texts = generator.integers(4, size=(2, 900))
    drafter, reference = SuffixDrafter(2, 1.0, history), ByRule(2)
    references = [reference, reference if history else ByRule(2)]
    batch, lengths = batch_of([[1], [1]]), np.array([2, 60])
    token_ids = torch.from_numpy(texts.copy()).as_subclass(Tokens)
    num_read = num_drafted = 0
    for _ in range(100):
        Tokens.num_read = 0
        streams = replace(batch.streams, positions=torch.from_numpy(lengths))
        draft = drafter.propose(replace(batch, token_ids=token_ids, streams=streams))
        assert Tokens.num_read == lengths.sum() - num_read
        for row, (text, length, reference) in enumerate(zip(texts, lengths.tolist(), references, strict=True)):
            for token in text[len(reference.texts[row]) : length].tolist():
                reference.append(row, token)
            matched, source, following = reference.longest_match(row)
            rest = reference.texts[source][following:]
            depth = min(4, matched, 4 if source == row else len(rest)) if matched > 1 else 0
            expected = [rest[index % len(rest)] for index in range(depth)]
            assert draft.token_ids[row, : draft.num_draft_tokens[row]].tolist() == expected
            num_drafted += depth
            # no round looks at it again
            token_ids[row, :length] = 9
        num_read = lengths.sum()
        lengths = lengths + generator.integers(3, size=2)
    assert num_drafted > 300


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


class ReadsAnew(SuffixDrafter):
    """Keeps nothing from one round to the next."""

    def propose(self, batch):
        self.forget()
        return super().propose(batch)


@pytest.mark.parametrize("options", [{}, {"graphs": True}, {"overlaps": True}], ids=str)
def test_drafts_are_of_the_request_that_is_in_the_slot(options):
    """Some begin with more tokens than the request before them in the slot had when it ended. Would catch: an engine
    that does not say where a request begins, a slot that goes on with the text of another."""
    noisy, seeds = transitions(3, seed=1), range(60)
    requests = [toy_requests(1, seed, prompt=(0, 1) * (1 + seed % 2 * 3))[0] for seed in seeds]

    def rounds_of(drafter):
        engine = toy_engine(
            *(noisy, noisy, VerificationMethod.probabilistic, DraftSampling.greedy),
            num_speculative_tokens=4,
            max_new_tokens=24,
            num_slots=3,
            eos_token_ids=frozenset({2}),
            drafter=drafter,
            **options,
        )
        records = engine.run(requests, lambda record: None).requests
        return [(item.num_proposed_tokens, item.num_accepted_tokens) for record in records for item in record.rounds]

    found = rounds_of(SuffixDrafter(2, 1.0))
    assert found == rounds_of(ReadsAnew(2, 1.0))
    assert sum(accepted for _, accepted in found) > 30
