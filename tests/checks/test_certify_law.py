"""The exact laws and toy pairs of certification, against the reference's truncation."""

import itertools

import pytest
import torch

from harness.checks.certification.cases import DTYPES, TRUNCATIONS, full_cases, small_cases, spread_cases
from harness.checks.certification.toy_models import (
    CONTROL,
    MASKED,
    MASKED_CONTROL,
    MASKED_NARROW_DRAFT,
    NARROW_DRAFT,
    PLAIN,
    WIDE,
    Profile,
    ToyModels,
    exact_law,
    processed_row,
)
from kernels.contract import Sampling
from kernels.reference.truncation import process

TOY_MODELS = [PLAIN, WIDE, NARROW_DRAFT, CONTROL]


def sampling_of(profile: Profile, num_rows: int) -> Sampling:
    temperature, top_k, top_p, min_p = profile
    return Sampling(
        torch.full((num_rows,), float(temperature)),
        torch.full((num_rows,), top_k),
        torch.full((num_rows,), float(top_p)),
        torch.full((num_rows,), float(min_p)),
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("truncation", TRUNCATIONS)
def test_two_ways_to_process_the_same_rows_agree(truncation, dtype):
    models, profiles = TRUNCATIONS[truncation]
    rows = models.in_dtype(DTYPES[dtype]).target_logits
    for profile in profiles:
        ours = torch.stack([processed_row(row, profile) for row in rows])
        torch.testing.assert_close(ours, process(rows, sampling_of(profile, len(rows))).exp(), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("truncation", [name for name in TRUNCATIONS if name != "none"])
def test_truncation_cuts_something_and_no_cut_hangs_on_rounding(truncation, dtype):
    models, profiles = TRUNCATIONS[truncation]
    rows = models.in_dtype(DTYPES[dtype]).target_logits
    for temperature, top_k, top_p, min_p in profiles:
        supports = [
            torch.stack(
                [processed_row(row, Profile(temperature, top_k, top_p + nudge, min_p * (1 + nudge))) for row in rows]
            )
            > 0
            for nudge in (-1e-4, 0.0, 1e-4 if top_p < 1 else 0.0)
        ]
        assert all(torch.equal(supports[0], support) for support in supports)
        assert not bool(supports[0].all(dim=1).any())
        if temperature > 0 and dtype == "float32":
            # a sampled row that were always cut to one token would test nothing
            assert int(supports[0].sum(1).max()) > 1
        if top_k:
            ordered = rows.double().sort(dim=1, descending=True).values
            assert bool((ordered[:, top_k - 1] > ordered[:, top_k]).all())


@pytest.mark.parametrize("models", [MASKED, MASKED_NARROW_DRAFT, MASKED_CONTROL], ids=lambda models: models.name)
def test_law_under_a_grammar_is_the_target_restricted_before_anything_is_cut(models: ToyModels):
    for setting in (Profile(temperature=0.8), Profile(temperature=0.8, top_k=2), Profile(temperature=0.0)):
        free = torch.softmax(models.target_logits.double() / float(torch.tensor(0.8)), dim=1)
        rows = free * models.allowed
        if setting.top_k or setting.temperature == 0:
            kept = rows.topk(2 if setting.top_k else 1, dim=1).indices
            rows = torch.zeros_like(rows).scatter_(1, kept, rows.gather(1, kept))
        rows = rows / rows.sum(dim=1, keepdim=True)
        first_two = exact_law(models, setting).view(models.vocab_size, models.vocab_size, -1).sum(dim=2)
        torch.testing.assert_close(first_two, rows[0][:, None] * (rows > 0) * rows, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("models", TOY_MODELS, ids=lambda models: models.name)
def test_law_of_a_sequence_is_the_product_of_its_steps(models: ToyModels):
    law = exact_law(models, Profile(temperature=0.8))
    rows = torch.softmax(models.target_logits.double() / float(torch.tensor(0.8)), dim=1)
    assert float(law.sum()) == pytest.approx(1.0)
    for tokens in itertools.islice(itertools.product(range(models.vocab_size), repeat=models.num_tokens), 0, None, 7):
        past, probability, code = [0, 0], 1.0, 0
        order = 1 if models.num_states == models.vocab_size else 2
        for token in tokens:
            state = past[-1] if order == 1 else past[-2] * models.vocab_size + past[-1]
            probability *= float(rows[state, token])
            code = code * models.vocab_size + token
            past.append(token)
        assert float(law[code]) == pytest.approx(probability, rel=1e-12)


def test_cells_have_names_of_their_own_and_small_ones_are_among_the_full():
    names = [case.name for case in full_cases()]
    assert len(set(names)) == len(names)
    assert {case.name for case in small_cases()} <= set(names)


@pytest.mark.parametrize(
    ("case", "profile"),
    [
        pytest.param(case, profile, id=f"{case.name}, T {profile.temperature:g}")
        for case in spread_cases()
        for profile in case.profiles
    ],
)
def test_in_a_spread_vocabulary_the_law_stays_that_of_the_pair(case, profile):
    """Of what the subject sees, and of the drafts; no cut depends on the mass of the tokens below it."""
    models = case.models.in_dtype(DTYPES[case.dtype])
    assert models.token_ids is not None
    sampling = sampling_of(profile, models.num_states)
    seen = process(models.rows_seen(models.target_logits), sampling).exp()
    expected = torch.stack([processed_row(row, profile) for row in models.target_logits])
    torch.testing.assert_close(seen[:, models.token_ids], expected, rtol=1e-12, atol=1e-15)
    drafted = process(models.rows_seen(models.draft_logits), sampling).exp()
    assert float(drafted[:, models.token_ids].sum(1).min()) == pytest.approx(1.0, abs=1e-12)
    if profile.truncates:
        assert bool((expected == 0).any(1).all()) and int((expected > 0).sum(1).min()) > 1
        assert int((models.rows_seen(models.target_logits) == 0).sum(1).min()) > 6000


@pytest.mark.parametrize("case", spread_cases()[::4], ids=lambda case: case.name)
def test_spread_tokens_lie_in_different_chunks_and_at_the_ends(case):
    token_ids, numbers = case.models.token_ids, case.models.numbers_of()
    assert len(numbers) == case.models.num_ids == 3 * 2048 + 5
    assert int(token_ids[-1]) == case.models.num_ids - 1
    assert len((token_ids // 2048).unique()) >= 3
    assert numbers[token_ids].tolist() == list(range(case.models.vocab_size))
    assert int((numbers < 0).sum()) == case.models.num_ids - case.models.vocab_size
