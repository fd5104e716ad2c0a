"""What a round leaves in the slots and for the host: the kernel against its twin, and the twin against lists."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.commit import commit
from kernels.contract import Slots, VerificationResult
from kernels.reference.commit import commit as reference_commit
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
def test_what_would_be_misread_is_refused(change, name):
    verdict = VerificationResult(
        tensor([[1, 2], [3, 4]]), tensor([0, 1]), torch.zeros(2, dtype=torch.bool, device=DEVICE)
    )
    arguments = change(verdict, tensor([[1], [3]]), tensor([1, 1]))
    with pytest.raises(ValueError, match=f"{name} must"):
        commit(*arguments, None)
