"""Which rows wait for the host, and what a round leaves in the slots: kernels against twins, twins against lists."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.commit import commit
from kernels.contract import ANY_TOKEN, NO_TOKEN, Slots, VerificationResult
from kernels.defer import defer
from kernels.reference.commit import commit as reference_commit
from kernels.reference.defer import defer as reference_defer
from tests.support.kernel_rounds import DEVICE, poisoned_allocations

CAPACITY, NUM_SLOTS = 12, 5


def tensor(values):
    return torch.tensor(values, dtype=torch.int64, device=DEVICE)


@st.composite
def rounds(draw):
    """(K, length, number accepted, count of drafts, invalid) of each row."""
    num_drafts = draw(st.integers(0, 4))
    row = st.tuples(st.integers(1, CAPACITY - num_drafts - 1), st.integers(0, num_drafts), st.booleans(), st.booleans())
    return num_drafts, draw(st.lists(row, min_size=1, max_size=NUM_SLOTS))


@settings(max_examples=40, deadline=None)
@given(rounds())
def test_what_was_emitted_is_appended_and_nothing_else(found):
    """Would catch tokens of a row that emits nothing, tokens behind the emitted ones, and a slot that takes no part."""
    num_drafts, rows = found
    lengths, accepted, emits, invalid = zip(*rows, strict=True)
    num_rows = len(rows)
    emitted = tensor([[100 * row + column for column in range(num_drafts + 1)] for row in range(num_rows)])
    drafts = tensor([[1000 + 10 * row + column for column in range(num_drafts)] for row in range(num_rows)])
    drafts = drafts.view(num_rows, num_drafts)
    counts = [number if decides else -1 for number, decides in zip(accepted, emits, strict=True)]
    verdict = VerificationResult(emitted, tensor(accepted), torch.tensor(invalid, device=DEVICE))
    told = torch.arange(NUM_SLOTS * CAPACITY + CAPACITY, device=DEVICE).view(NUM_SLOTS + 1, CAPACITY) + 10_000

    def slots():
        others = [1] * (NUM_SLOTS - num_rows)
        return Slots(told.clone(), tensor([*lengths, *others]), tensor([7] * NUM_SLOTS), NUM_SLOTS)

    with poisoned_allocations():
        mine, kept = slots(), slots()
        packed = commit(verdict, drafts, tensor(counts), mine)
        alone = commit(verdict, drafts, tensor(counts), None)
    twin = slots()
    assert torch.equal(packed, reference_commit(verdict, drafts, tensor(counts), twin))
    assert torch.equal(alone, packed) and torch.equal(reference_commit(verdict, drafts, tensor(counts), None), packed)
    for row, values in enumerate(packed.tolist()):
        assert values == [*emitted[row].tolist(), *drafts[row].tolist(), accepted[row], counts[row], invalid[row]]
    for slot in range(NUM_SLOTS):
        added = emitted[slot, : accepted[slot] + 1].tolist() if slot < num_rows and emits[slot] else []
        length = int(kept.lengths[slot])
        wanted = [*told[slot, :length].tolist(), *added]
        for state in (mine, twin):
            assert int(state.lengths[slot]) == len(wanted) and int(state.rounds[slot]) == 7 + bool(added)
            assert state.token_ids[slot].tolist() == [*wanted, *told[slot, len(wanted) :].tolist()]


def test_a_row_at_its_end_writes_into_no_other():
    """Would catch an answer that runs on into the next slot."""
    for subject in (commit, reference_commit):
        state = Slots(torch.zeros(3, 4, dtype=torch.int64, device=DEVICE), tensor([4, 1]), tensor([0, 0]), 2)
        verdict = VerificationResult(
            tensor([[5], [6]]), tensor([0, 0]), torch.zeros(2, dtype=torch.bool, device=DEVICE)
        )
        subject(verdict, tensor([[], []]).view(2, 0), tensor([0, 0]), state)
        assert state.token_ids[:2].tolist() == [[0, 0, 0, 5], [0, 6, 0, 0]]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda verdict, drafts, counts: (verdict, drafts, counts.int()), "counts"),
        (lambda verdict, drafts, counts: (verdict, drafts[:1], counts), "draft_ids"),
        (lambda verdict, drafts, counts: (verdict, drafts.int(), counts), "draft_ids"),
    ],
    ids=["counts of 4 bytes", "too few drafts", "drafts of 4 bytes"],
)
def test_what_a_commit_would_misread_is_refused(change, name):
    verdict = VerificationResult(
        tensor([[1, 2], [3, 4]]), tensor([0, 1]), torch.zeros(2, dtype=torch.bool, device=DEVICE)
    )
    arguments = change(verdict, tensor([[1], [3]]), tensor([1, 1]))
    with pytest.raises(ValueError, match=f"{name} must"):
        commit(*arguments, None)


NOTHING, ROUND, ONE_TOKEN = 0, 1, 2


def counts_of(told, drafts, ending, decides=ROUND, num_drafts=None):
    """The result of both for a row with these tokens and drafts, whose reasoning ends with `ending`."""
    arguments = {
        "decides": tensor([decides]),
        "num_draft_tokens": tensor([len(drafts) if num_drafts is None else num_drafts]),
        "draft_ids": tensor([drafts]).view(1, len(drafts)),
        # what a row holds beyond its length is not looked at
        "token_ids": tensor([[*told, 8, 9, 8, 9, 8, 9]]),
        "lengths": tensor([len(told)]),
        "endings": tensor([ending]),
    }
    expected = reference_defer(**arguments)
    with poisoned_allocations():
        found = defer(**arguments)
    assert found.num_draft_tokens.tolist() == expected.num_draft_tokens.tolist()
    assert found.is_undecided.tolist() == expected.is_undecided.tolist() == [found.num_draft_tokens.item() < 0]
    return found.num_draft_tokens.item()


@pytest.mark.parametrize(
    ("told", "drafts", "expected"),
    [
        pytest.param([7, 8, 9], [5, 5], -1, id="at the end of the tokens so far"),
        pytest.param([7, 8], [9, 5], -1, id="in the first draft token"),
        pytest.param([7], [8, 9], -1, id="in the last draft token"),
        pytest.param([7], [6, 8, 9], -1, id="within the drafts"),
        pytest.param([8, 9, 7], [5, 5], 2, id="further back"),
        pytest.param([7], [9, 8], 2, id="the other way round"),
        pytest.param([9], [5, 8], 2, id="its last token alone, and its first"),
        pytest.param([8, 9], [], -1, id="without drafts"),
        pytest.param([7, 8], [], 0, id="its first token after everything"),
    ],
)
def test_where_an_ending_of_two_tokens_stands(told, drafts, expected):
    assert counts_of(told, drafts, [ANY_TOKEN, ANY_TOKEN, 8, 9]) == expected


@pytest.mark.parametrize(
    ("decides", "ending", "num_drafts", "expected"),
    [
        pytest.param(ROUND, [9], 1, 1, id="a draft that there is not"),
        pytest.param(ROUND, [9], 2, -1, id="a draft that there is"),
        pytest.param(ROUND, [NO_TOKEN], 2, 2, id="no ending"),
        pytest.param(ROUND, [ANY_TOKEN], 0, -1, id="any ending"),
        pytest.param(ONE_TOKEN, [ANY_TOKEN], 2, 0, id="the end of a prompt"),
        pytest.param(NOTHING, [NO_TOKEN], 2, -1, id="nothing to decide"),
    ],
)
def test_what_is_looked_at(decides, ending, num_drafts, expected):
    assert counts_of([5, 6], [7, 9], ending, decides, num_drafts) == expected


@settings(max_examples=40, deadline=None)
@given(
    told=st.lists(st.integers(0, 2), min_size=1, max_size=5),
    drafts=st.lists(st.integers(0, 2), max_size=5),
    ending=st.lists(st.integers(0, 2), min_size=1, max_size=4),
)
def test_every_ending_is_found_and_nothing_else(told, drafts, ending):
    tokens = [*told, *drafts]
    stops = range(len(told), len(tokens) + 1)
    stands = any(tokens[:stop][-len(ending) :] == ending for stop in stops)
    assert counts_of(told, drafts, [ANY_TOKEN] * (4 - len(ending)) + ending) == (-1 if stands else len(drafts))


def test_rows_of_larger_tables():
    """The tables have more rows than take part, and drafts may be part of a wider tensor."""
    drafts = tensor([[1, 2, 3, 0], [1, 9, 3, 0], [9, 2, 3, 0]])[:, :3]
    arguments = {
        "decides": tensor([ROUND] * 3),
        "num_draft_tokens": tensor([3, 3, 3]),
        "draft_ids": drafts,
        "token_ids": tensor([[5, 6, 9]] * 5),
        "lengths": tensor([2, 2, 2]),
        "endings": tensor([[9]] * 2 + [[NO_TOKEN]] * 3),
    }
    assert defer(**arguments).num_draft_tokens.tolist() == [3, -1, 3]
    assert reference_defer(**arguments).num_draft_tokens.tolist() == [3, -1, 3]


@pytest.mark.parametrize("num_drafts", [0, 3], ids=["no drafts", "drafts"])
def test_drafts_are_counted_where_no_row_is_deferred(num_drafts):
    """Would catch a kernel that takes the absence of endings for endings that always fit."""
    arguments = {
        "decides": tensor([ROUND, ONE_TOKEN, NOTHING]),
        "num_draft_tokens": tensor([num_drafts] * 3),
        "draft_ids": torch.full((3, num_drafts), 9, dtype=torch.int64, device=DEVICE),
        "token_ids": tensor([[9, 9, 9, 9]] * 3),
        "lengths": tensor([2, 2, 2]),
        "endings": None,
    }
    with poisoned_allocations():
        found = defer(**arguments)
    for each in (found, reference_defer(**arguments)):
        assert each.num_draft_tokens.tolist() == [num_drafts, 0, -1]
        assert each.is_undecided.tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("lengths", torch.ones(2, dtype=torch.int32), r"lengths must be \[2\] int64"),
        ("endings", torch.zeros(1, 4, dtype=torch.int64), "endings must have 2 rows"),
        ("token_ids", torch.zeros(9, 2, dtype=torch.int64).T, "token_ids must have 2 rows of int64 without gaps"),
    ],
    ids=["another type", "too few rows", "with gaps"],
)
def test_what_a_deferral_would_misread_is_refused(name, value, message):
    arguments = {
        "decides": tensor([1, 1]),
        "num_draft_tokens": tensor([1, 1]),
        "draft_ids": tensor([[3], [4]]),
        "token_ids": tensor([[1, 2], [1, 2]]),
        "lengths": tensor([2, 2]),
        "endings": tensor([[9], [9]]),
    }
    with pytest.raises(ValueError, match=message):
        defer(**{**arguments, name: value.to(DEVICE)})
