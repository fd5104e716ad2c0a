"""Batches of slots: padded slots, and target rows that lie padded instead of packed."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.contract import Draft, VerificationResult
from kernels.reference.acceptance import acceptance_terms, expected_accepted
from kernels.reference.verify import verify
from tests.support.random_round import (
    GREEDY,
    PLAIN,
    SAMPLED_METHODS,
    SHARES_NOISE,
    Method,
    Round,
    Setting,
    verification_of,
)

pytestmark = pytest.mark.fast

LENGTHS = [3, 1, 0, 2, 3, 2]
PADDED = [1, 4]
LAYOUTS = ["packed", "padded"]
METHODS = pytest.mark.parametrize("method", SAMPLED_METHODS, ids=lambda method: method.value)


def batch_of(method: Method, setting: Setting = PLAIN) -> Round:
    shared_noise = method in SHARES_NOISE
    settings = [setting, GREEDY, (0.7, 5, 0.9, 0.0)] * 2
    return Round(settings, LENGTHS, vocab_size=61, shared_noise=shared_noise)


def padded_rows(batch: Round) -> Tensor:
    """[R * (K + 1), V]; the places after a request's own rows hold NaN."""
    target = batch.target.clone()
    target[torch.arange(target.shape[1]) > batch.lengths[:, None]] = torch.nan
    return target.flatten(0, 1)


def rows_in(layout: str, batch: Round, requests: Tensor) -> Tensor:
    return batch.rows(requests) if layout == "packed" else padded_rows(batch)


def assert_same(found: VerificationResult, expected: VerificationResult) -> None:
    assert torch.equal(found.token_ids, expected.token_ids)
    assert torch.equal(found.num_accepted, expected.num_accepted)
    assert torch.equal(found.invalid, expected.invalid)


def with_padding(batch: Round) -> tuple[Draft, Round]:
    """The same round where the slots PADDED hold nothing: whatever is read of them is poison."""
    draft = Draft(batch.token_ids.clone(), batch.lengths.clone(), batch.cache.clone(), torch.arange(len(LENGTHS)))
    draft.num_draft_tokens[PADDED] = -1
    draft.token_ids[PADDED] = 10**9
    assert draft.logits is not None and draft.idx_mapping is not None
    draft.logits[PADDED] = torch.nan
    draft.idx_mapping[PADDED] = -(10**9)
    batch.target[PADDED] = torch.nan
    batch.sampling.temperature[PADDED] = torch.nan
    batch.lengths[PADDED] = -1
    return draft, batch


@METHODS
def test_the_layout_of_the_target_rows_does_not_matter(method: Method):
    batch = batch_of(method)
    draft = batch.draft(torch.arange(len(LENGTHS)))
    found = verify(padded_rows(batch), draft, batch.sampling, verification_of(method), batch.streams)
    assert_same(found, batch.verify(verification_of(method)))


@pytest.mark.parametrize("layout", LAYOUTS)
@METHODS
def test_padded_slots_emit_nothing_and_change_nothing(method: Method, layout: str):
    expected = batch_of(method).verify(verification_of(method))
    draft, batch = with_padding(batch_of(method))
    present = torch.tensor([request for request in range(len(LENGTHS)) if request not in PADDED])
    rows = rows_in(layout, batch, present)
    found = verify(rows, draft, batch.sampling, verification_of(method), batch.streams)
    expected.token_ids[PADDED] = -1
    expected.num_accepted[PADDED] = 0
    expected.invalid[PADDED] = False
    assert_same(found, expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_greedy_batches_have_padded_slots_too(layout: str):
    draft, batch = with_padding(Round([GREEDY] * len(LENGTHS), LENGTHS, vocab_size=7))
    present = torch.tensor([0, 2, 3, 5])
    rows = rows_in(layout, batch, present)
    verdict = verify(rows, draft, batch.sampling, verification_of(Method.greedy), batch.streams)
    assert (verdict.token_ids[PADDED] == -1).all() and not verdict.invalid.any()
    best = batch.target.argmax(dim=2)
    for request in present.tolist():
        num_accepted = int(verdict.num_accepted[request])
        tokens = verdict.token_ids[request, : num_accepted + 1].tolist()
        assert tokens == best[request, : num_accepted + 1].tolist()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_batch_of_padded_slots_only(layout: str):
    batch = batch_of(Method.block)
    draft = replace(batch.draft(torch.arange(len(LENGTHS))), num_draft_tokens=torch.full((len(LENGTHS),), -1))
    rows = batch.target[:0, 0] if layout == "packed" else padded_rows(batch)
    verdict = verify(rows, draft, batch.sampling, verification_of(Method.block), batch.streams)
    assert (verdict.token_ids == -1).all() and not verdict.num_accepted.any() and not verdict.invalid.any()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_acceptance_terms_of_padded_slots_are_zero_and_those_of_others_unchanged(layout: str):
    whole = batch_of(Method.block)
    every = torch.arange(len(LENGTHS))
    expected = acceptance_terms(whole.rows(every), whole.draft(every), whole.sampling)
    draft, batch = with_padding(batch_of(Method.block))
    rows = rows_in(layout, batch, torch.tensor([0, 2, 3, 5]))
    found = acceptance_terms(rows, draft, batch.sampling)
    for one, other in zip(found, expected, strict=True):
        assert other is not None and one is not None
        other[PADDED] = 0.0
        assert torch.equal(one, other)
    assert not expected_accepted(found, draft)[PADDED].any()


@pytest.mark.parametrize("num_rows", [14, 22, 25], ids=["too few", "between the layouts", "too many"])
def test_rows_of_neither_layout_are_an_error(num_rows: int):
    draft, batch = with_padding(batch_of(Method.block))
    with pytest.raises(ValueError, match=f"11 in all; found {num_rows}; padded to 4 rows per request .* 24"):
        verify(torch.zeros(num_rows, 61), draft, batch.sampling, verification_of(Method.block), batch.streams)


def test_fewer_drafts_than_a_padded_slot_are_an_error():
    batch = batch_of(Method.block)
    draft = replace(batch.draft(torch.arange(len(LENGTHS))), num_draft_tokens=torch.tensor([*LENGTHS[:-1], -2]))
    with pytest.raises(ValueError, match=r"must lie in 0..3.*-2\]; -1 marks a padded slot"):
        verify(padded_rows(batch), draft, batch.sampling, verification_of(Method.block), batch.streams)
