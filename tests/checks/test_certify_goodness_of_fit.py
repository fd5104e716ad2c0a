"""The test of counts, its power and its estimate, on multinomials whose deviation is known."""

import numpy as np
import pytest
import torch
from scipy import stats

from harness.checks.certification.goodness_of_fit import (
    MIN_EXPECTED,
    detectable_variation,
    fit,
    power_at,
    samples_needed,
)

pytestmark = pytest.mark.fast

LEVEL = 1e-6 / 161
NUM_SEQUENCES = 27


def test_power_sample_size_and_detectable_variation_agree():
    num_samples = samples_needed(0.003, LEVEL, 255, 0.99)
    assert power_at(0.003, num_samples, LEVEL, 255) == pytest.approx(0.99, abs=1e-5)
    assert detectable_variation(num_samples, LEVEL, 255, 0.99) == pytest.approx(0.003, rel=1e-5)
    assert 5e6 < num_samples < 1e7


def test_a_law_of_a_single_sequence_has_the_power_of_seeing_another_one():
    """Would catch df = 0 handed to the chi-square law, which has none."""
    assert power_at(0.1, 20, LEVEL, 0) == pytest.approx(1 - 0.9**20)
    assert power_at(detectable_variation(20, LEVEL, 0, 0.99), 20, LEVEL, 0) == pytest.approx(0.99)
    assert power_at(0.1, samples_needed(0.1, LEVEL, 0, 0.99), LEVEL, 0) > 0.99


def law_of(seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).dirichlet(np.full(NUM_SEQUENCES, 2.0)))


def counts_of(probs: torch.Tensor, num_samples: int, seed: int) -> torch.Tensor:
    """[1, 2, N] counts of two halves."""
    generator = np.random.default_rng(seed)
    return torch.from_numpy(generator.multinomial(num_samples // 2, probs.numpy(), size=(1, 2)))


def test_false_alarms_come_as_often_as_the_level_says():
    law = law_of(0)
    p_values = [fit(counts_of(law, 20_000, seed), law[None]).p_value for seed in range(2000)]
    # Kolmogorov's distance and the share of small p-values, each at 4 standard errors or more
    assert stats.kstest(p_values, "uniform").pvalue > 1e-4
    assert 0.002 < np.mean(np.array(p_values) < 0.01) < 0.02


def deviating(law: torch.Tensor, variation: float, spread: str) -> torch.Tensor:
    """A law at this total variation from `law`."""
    if spread == "proportional":
        # the same relative deviation in each of two halves, which is the hardest to see
        up = law.cumsum(0) < 0.5
        return law + torch.where(up, variation / law[up].sum(), -variation / law[~up].sum()) * law
    first, second = law.argsort(descending=True)[:2]
    wrong = law.clone()
    wrong[first] += variation
    wrong[second] -= variation
    return wrong


SPREADS = ["proportional", "on two sequences"]


@pytest.mark.parametrize("spread", SPREADS)
def test_a_known_deviation_is_detected_at_least_as_often_as_the_power_says(spread):
    law, num_samples, level = law_of(1), 45_000, 1e-3
    wrong = deviating(law, 0.02, spread)
    promised = power_at(0.02, num_samples, level, NUM_SEQUENCES - 1)
    detected = np.mean([fit(counts_of(wrong, num_samples, seed), law[None]).p_value < level for seed in range(400)])
    assert 0.5 < promised < 0.999
    assert detected > promised - 4 * (promised * (1 - promised) / 400) ** 0.5


@pytest.mark.parametrize("spread", SPREADS)
def test_the_estimated_variation_is_held_by_its_interval_and_never_too_large_on_average(spread):
    law = law_of(1)
    wrong = deviating(law, 0.02, spread)
    found = [fit(counts_of(wrong, 4_000_000, seed), law[None]) for seed in range(200)]
    estimates = np.array([result.variation for result in found])
    error = estimates.std() / len(estimates) ** 0.5
    assert 0.0195 < estimates.mean() < 0.02 + 4 * error
    assert np.mean([result.variation_low <= 0.02 <= result.variation_high for result in found]) > 0.98


def test_the_estimated_variation_of_an_exact_sampler_is_centred_on_zero():
    law = law_of(2)
    found = [fit(counts_of(law, 20_000, seed), law[None]) for seed in range(500)]
    estimates = np.array([result.variation for result in found])
    assert abs(estimates.mean()) < 4 * estimates.std() / len(estimates) ** 0.5
    covered = np.mean([result.variation_low <= 0 <= result.variation_high for result in found])
    assert covered > 0.99


def test_a_sequence_that_the_law_excludes_fails_by_itself():
    law = torch.tensor([[0.5, 0.5, 0.0]], dtype=torch.float64)
    found = fit(torch.tensor([[[500, 500, 1], [500, 500, 0]]]), law)
    assert (found.num_impossible, found.p_value) == (1, 0.0)


def test_rare_sequences_are_pooled_and_counted():
    law = torch.tensor([[0.5, 0.499, 0.0005, 0.0005]], dtype=torch.float64)
    found = fit(torch.tensor([[[5000, 4990, 10, 0], [5000, 4990, 10, 0]]]), law)
    assert MIN_EXPECTED > 20_000 * 0.001
    # the two rare ones lie with the rarest common one: 9980 + 20 observed, 9980 + 20 expected
    assert (found.df, found.statistic) == (1, pytest.approx(0.0))
    assert found.pooled_mass == pytest.approx(0.5)


def test_groups_have_their_own_laws():
    laws = torch.tensor([[1.0, 0.0], [0.5, 0.5]], dtype=torch.float64)
    right = torch.tensor([[[100, 0], [100, 0]], [[50, 50], [50, 50]]])
    assert (fit(right, laws).p_value, fit(right, laws).df) == (1.0, 1)
    assert fit(right.flip(0), laws).p_value == 0.0
