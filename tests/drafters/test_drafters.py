"""Drafters that need no network, and the pairs a chain drafter feeds its head."""

import pytest
import torch

from harness.drafters.ngram_run import lookup, merged
from harness.drafters.none_run import NoDrafter
from harness.drafters.protocol import Batch
from kernels.contract import NO_TOKEN, Sampling, Streams
from kernels.core import reference_core
from kernels.depth import confidence, num_confident
from tests.support.draft_paths import paths_of

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("sequence", "longest", "shortest", "num_tokens", "expected"),
    [
        pytest.param([1, 2, 3, 9, 1, 2], 4, 2, 3, [3, 9, 1], id="tokens after the earlier occurrence"),
        pytest.param([1, 2, 3, 4, 1, 2, 5, 6, 1, 2], 4, 2, 2, [5, 6], id="the most recent occurrence wins"),
        pytest.param([7, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2], 3, 2, 1, [3], id="a longer suffix beats a more recent one"),
        pytest.param([1, 2, 3, 4], 4, 2, 3, [], id="no occurrence, no draft"),
        pytest.param([1, 2, 1], 4, 2, 3, [], id="a suffix shorter than the shortest is not looked up"),
        pytest.param([5, 5, 5], 4, 1, 4, [5], id="overlapping occurrence gives only tokens that exist"),
        pytest.param([4], 4, 1, 4, [], id="a row without a request"),
    ],
)
def test_lookup(sequence, longest, shortest, num_tokens, expected):
    rows = torch.full((2, 16), 1)
    rows[1, : len(sequence)] = torch.tensor(sequence)
    token_ids, counts = lookup(rows, torch.tensor([1, len(sequence)]), longest, shortest, num_tokens)
    assert counts[1] == len(expected) and token_ids[1, 0, : len(expected)].tolist() == expected
    assert token_ids.shape == (2, 1, num_tokens) and counts[0] == 0


@pytest.mark.parametrize("earliest", [False, True])
def test_lookup_agrees_with_a_search_one_by_one(earliest):
    """Random rows over three tokens, where several suffixes and places match."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(3, (200, 24), generator=generator)
    lengths = torch.randint(1, 25, (200,), generator=generator)
    token_ids, counts = lookup(rows, lengths, 4, 2, 5, earliest=earliest)
    several, numbers = lookup(rows, lengths, 4, 2, 5, num_matches=3, earliest=earliest)
    for row, length in enumerate(lengths.tolist()):
        expected = (slow_lookup(rows[row, :length].tolist(), 4, 2, 5, earliest) + [[]] * 3)[:3]
        assert token_ids[row, 0, : counts[row, 0]].tolist() == expected[0]
        assert [several[row, match, :number].tolist() for match, number in enumerate(numbers[row])] == expected
    assert 0 < counts.count_nonzero() < 200 and int((numbers > 0).all(dim=1).sum()) > 20


def test_a_tree_of_continuations_has_each_beginning_once():
    """The first one whole, then what the others add. Would catch a node under another parent, and a tree that is cut
    in front of the one that is worth most."""
    generator = torch.Generator().manual_seed(1)
    found, counts = torch.randint(3, (300, 4, 3), generator=generator), torch.randint(4, (300, 4), generator=generator)
    token_ids, parents, num_nodes = merged(found, counts, 6)
    for row in range(300):
        wanted = {}
        for continuation, number in zip(found[row].tolist(), counts[row].tolist(), strict=True):
            wanted |= {tuple(continuation[:end]): None for end in range(1, number + 1)}
        paths = paths_of(token_ids[row].tolist(), parents[row].tolist(), int(num_nodes[row]))
        assert paths == list(wanted)[:6]
    assert {0, 6} <= set(num_nodes.tolist())
    assert bool((token_ids[num_nodes == 4, 4:] == NO_TOKEN).all() and (parents[num_nodes == 4, 4:] == -1).all())


def slow_lookup(sequence, longest, shortest, num_tokens, earliest):
    """What follows every occurrence of the end of the sequence, the best one first."""
    size, found = len(sequence), {}
    for width in range(min(longest, size - 1), shortest - 1, -1):
        starts = range(size - width)
        for start in starts if earliest else reversed(starts):
            if sequence[start : start + width] == sequence[size - width :]:
                found.setdefault(start + width, sequence[start + width :][:num_tokens])
    return list(found.values())


def test_baseline_proposes_nothing():
    numbers = torch.ones(3)
    batch = Batch(
        rows=slice(0, 3),
        num_rows=3,
        num_speculative_tokens=4,
        token_ids=torch.zeros(3, 8, dtype=torch.int64),
        sampling=Sampling(numbers, numbers, numbers, numbers),
        streams=Streams(numbers.long(), numbers.long(), numbers.long()),
        core=reference_core(),
        length=1,
    )
    draft = NoDrafter().propose(batch)
    assert draft.token_ids.shape == (3, 0) and draft.num_draft_tokens.tolist() == [0, 0, 0]


def test_confidence_is_the_largest_probability():
    """Would catch drafts after an unsure row, or after a row without a distribution."""
    rows = torch.tensor([[0.0, 1.0, -3.0], [5.0, 5.0, -torch.inf], [-torch.inf] * 3])
    expected = rows.double().softmax(-1).amax(-1).float()
    torch.testing.assert_close(confidence(rows), expected, equal_nan=True)
    confidences = torch.tensor([[0.9, 0.4, 0.9], [0.5, 0.5, 0.5], [torch.nan, 0.9, 0.9], [0.1, 0.9, 0.9]])
    assert num_confident(confidences, 0.5).tolist() == [1, 3, 0, 0]
