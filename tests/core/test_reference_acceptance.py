"""Exact acceptance: its terms by definition, and its expectation against the average of `verify`."""

import math

import pytest
import torch

from kernels.contract import Draft, Streams, Verification
from kernels.reference.acceptance import acceptance_terms, expected_accepted
from kernels.reference.truncation import process, sampling_rows
from kernels.reference.verify import verify
from tests.support.random_round import GREEDY, PLAIN, Method, Round

pytestmark = pytest.mark.fast

SMALL_SETTINGS = {"plain": PLAIN, "processed": (0.7, 5, 0.9, 0.0), "greedy": GREEDY}


@pytest.mark.parametrize("case", SMALL_SETTINGS)
@pytest.mark.parametrize("one_hot", [False, True], ids=["cached", "one-hot"])
def test_expected_acceptance_is_the_average_of_verify(case: str, one_hot: bool):
    num_copies, num_drafts = 4000, 6
    batch = Round([SMALL_SETTINGS[case]] * num_drafts, [3, 3, 2, 1, 3, 0], vocab_size=8, seed=5)
    draft = batch.draft(torch.arange(num_drafts))
    if one_hot:
        draft = Draft(draft.token_ids, draft.num_draft_tokens)
    rows = batch.rows(torch.arange(num_drafts))
    expected = expected_accepted(acceptance_terms(rows, draft, batch.sampling), draft)
    many = torch.arange(num_drafts).repeat(num_copies)
    streams = Streams(torch.arange(len(many)), torch.full_like(many, 9), torch.zeros_like(many))
    copies = Draft(draft.token_ids[many], draft.num_draft_tokens[many], draft.logits, None if one_hot else many, None)
    for column, method in enumerate((Method.strict, Method.probabilistic, Method.block)):
        verdict = verify(
            rows.repeat(num_copies, 1), copies, sampling_rows(batch.sampling, many), Verification(method), streams
        )
        accepted = verdict.num_accepted.view(num_copies, num_drafts).double()
        error = accepted.std(dim=0) / math.sqrt(num_copies)
        assert bool(((accepted.mean(dim=0) - expected[:, column]).abs() <= 4.5 * error + 1e-12).all())


def test_acceptance_terms_by_definition():
    batch = Round([PLAIN, (0.7, 5, 0.9, 0.0), GREEDY, PLAIN], [3, 3, 3, 2], vocab_size=8, seed=6)
    requests = torch.arange(4)
    terms = acceptance_terms(batch.rows(requests), batch.draft(requests), batch.sampling)
    for request in range(4):
        rows = sampling_rows(batch.sampling, torch.full((3,), request))
        target = process(batch.target[request, :3], rows).exp()
        proposed = process(batch.cache[request], rows).exp()
        for index in range(3):
            token = int(batch.token_ids[request, index])
            if request == 2:
                proposed[index] = torch.nn.functional.one_hot(torch.tensor(token), 8).double()
            found = [float(term[request, index]) for term in terms[:4]]
            expected = [
                float(target[index, token]),
                float(proposed[index, token]),
                float(torch.minimum(target[index], proposed[index]).sum()),
                float((target[index] * proposed[index]).sum()),
            ]
            assert found == pytest.approx(expected if index < batch.lengths[request] else [0.0] * 4, abs=1e-12)


def test_other_masses_than_the_overlap_are_left_out_when_not_asked_for():
    batch = Round([PLAIN] * 2, [2, 1], vocab_size=8)
    round_ = batch.rows(torch.arange(2)), batch.draft(torch.arange(2)), batch.sampling
    terms = acceptance_terms(*round_, False)
    assert torch.equal(terms.overlap, acceptance_terms(*round_).overlap)
    assert terms.strict_mass is None
    assert terms.block_threshold.shape == (2, 2)
