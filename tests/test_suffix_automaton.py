"""The suffix automaton against a search through the texts, and the drafts that come of it."""

import numpy as np
import pytest
import torch

from harness.drafters.protocol import Batch
from harness.drafters.suffix import SuffixDrafter
from harness.drafters.suffix_automaton import SuffixAutomaton
from kernels.contract import Sampling, Streams
from kernels.core import reference_core


def longest_by_search(text):
    """Length of the longest suffix that has occurred before."""
    for length in range(len(text) - 1, 0, -1):
        suffix = text[len(text) - length :]
        if any(suffix == text[at : at + length] for at in range(len(text) - length)):
            return length
    return 0


@pytest.mark.parametrize("num_symbols", [1, 2, 5])
def test_matches_agree_with_a_search_while_the_text_grows(num_symbols):
    """Would catch: a clone that loses transitions or its place, a link to a suffix that is not the longest."""
    generator = np.random.default_rng(num_symbols)
    automaton, matched = SuffixAutomaton(), []
    for _ in range(160):
        automaton.append(int(generator.integers(num_symbols)))
        text, match = automaton.tokens, automaton.longest_match()
        assert match.length == longest_by_search(text)
        assert text[match.following - match.length : match.following] == text[len(text) - match.length :]
        assert match.following < len(text)
        matched.append(match.length)
    assert max(matched) > 3


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
