"""Bootstrap intervals by prompt: the distribution they read, and what they refuse."""

import numpy as np
import pytest

from harness.analysis.intervals import (
    MAX_CANDIDATES,
    expanded_levels,
    interval,
    percentile_replicates,
    resample_weights,
)

pytestmark = pytest.mark.fast


def test_weights_draw_prompts_with_replacement_and_are_the_same_every_time():
    """Would catch weights that depend on the call (pairs would not meet the same resamples) or do not add up."""
    weights = resample_weights(7, 4000)
    assert (weights.sum(axis=1) == 7).all() and (weights == weights.round()).all()
    np.testing.assert_allclose(weights.mean(axis=0), 1, atol=0.1)
    np.testing.assert_allclose(weights.var(axis=0), 6 / 7, atol=0.1)
    before = weights.copy()
    resample_weights.cache_clear()
    assert (resample_weights(7, 4000) == before).all()
    with pytest.raises(ValueError, match="read-only"):
        weights[0, 0] = 1


def test_percentiles_are_widened_for_few_prompts():
    """Would catch plain percentiles (2.5 %, 97.5 %), which are too narrow for few prompts."""
    low, high = expanded_levels(10, 0.95)
    assert low == pytest.approx(0.008551, rel=1e-4) and high == 1 - low
    assert expanded_levels(100_000, 0.95)[0] == pytest.approx(0.025, rel=1e-3)
    assert expanded_levels(2, 0.95)[0] < 1e-9


def test_interval_of_a_sequence_of_known_quantiles():
    replicates = np.linspace(0, 1, 10_001)
    assert interval(replicates, 100_000, 0.9) == pytest.approx((0.05, 0.95), abs=1e-3)


def test_no_interval_from_one_prompt_or_from_mostly_undefined_resamples():
    """Would catch an interval of width zero for one prompt, and one made of the few resamples that are defined."""
    replicates = np.linspace(0, 1, 1000)
    assert np.isnan(interval(replicates, 1, 0.95)).all()
    assert np.isnan(interval(replicates, 0, 0.95)).all()
    some = replicates.copy()
    some[:40] = np.nan
    assert not np.isnan(interval(some, 50, 0.95)).any()
    some[:60] = np.nan
    assert np.isnan(interval(some, 50, 0.95)).all()


@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
def test_resampled_percentiles_are_those_of_the_repeated_values(level):
    """Would catch percentiles over prompts instead of values, and an interpolation other than the point estimate's."""
    generator = np.random.default_rng(1)
    prompt_index = generator.integers(0, 9, size=200)
    values = generator.exponential(size=200).round(2)
    weights = resample_weights(9, 50)
    expected = [np.quantile(np.repeat(values, row[prompt_index].astype(int)), level) for row in weights]
    np.testing.assert_allclose(percentile_replicates(values, prompt_index, weights, level), expected, rtol=1e-12)


def test_resampled_percentiles_of_many_values_are_close():
    """With more values than are told apart the rounding stays far below the interval's own width."""
    generator = np.random.default_rng(2)
    num_values = 20 * MAX_CANDIDATES
    prompt_index = generator.integers(0, 80, size=num_values)
    values = generator.lognormal(size=num_values) * generator.lognormal(size=80)[prompt_index]
    weights = resample_weights(80, 60)
    for level in (0.5, 0.99):
        expected = np.array([np.quantile(np.repeat(values, row[prompt_index].astype(int)), level) for row in weights])
        error = percentile_replicates(values, prompt_index, weights, level) - expected
        assert abs(error).max() < 0.1 * expected.std()


def test_resamples_without_a_value_are_undefined():
    weights = np.array([[2.0, 0.0], [1.0, 1.0], [0.0, 2.0]])
    result = percentile_replicates(np.array([3.0]), np.array([1]), weights, 0.5)
    assert np.isnan(result[0]) and (result[1:] == 3).all()
    assert np.isnan(percentile_replicates(np.array([]), np.array([], dtype=int), weights, 0.5)).all()
