"""Packages with verification of their own: each case that there is, with few requests, where the package is installed
or on PYTHONPATH; results/certified holds what many requests found."""

from importlib.util import find_spec

import pytest
import torch

from harness.checks.certification.cases import full_cases
from harness.checks.certification.evaluate import laws
from harness.checks.certification.goodness_of_fit import fit
from harness.checks.certification.simulate import simulate
from harness.checks.certification.subject import features_of, load_subject
from harness.checks.certification.tree_cases import tree_cases
from tests.support.certify_cases import PACKAGES

CPU = torch.device("cpu")
LEVEL = 1e-7
WAYS = {
    "dflash": ("probabilistic, sampled cached, float32, top-p",),
    "dflash2": ("probabilistic, sampled cached, float32, none",),
    "economize": (
        "probabilistic, sampled cached, float32, top-p",
        "probabilistic, sampled cached, float32, some cut",
        "probabilistic, greedy one-hot, float32, mixed, ragged, padded slots",
        "recursive, sampled cached, float32, mixed, ragged, distinct siblings",
        "recursive, greedy one-hot, float32, none, ragged",
    ),
    "flashspec": (
        "probabilistic, sampled cached, float32, top-k",
        "probabilistic, greedy one-hot, float32, none",
    ),
    "flashspec_batched": ("probabilistic, sampled cached, float32, none",),
    "mini_infer": ("probabilistic, sampled cached, float32, none", "greedy, greedy one-hot, float32, none"),
    "naive_hsd": ("block, sampled cached, float32, none",),
    "sequential_sd": ("probabilistic, sampled cached, float32, none",),
}
BIASED = {"sequential_sd": ("block, sampled cached, float32, none",)}


def found(name, case_name, num_samples=4000):
    """(p-value, faults) of a case of a subject, which is skipped where its package is missing."""
    if find_spec(PACKAGES[name]) is None:
        pytest.skip(f"{PACKAGES[name]} is not on PYTHONPATH")
    subject = load_subject(name, CPU)
    (case,) = (case for case in (*full_cases(), *tree_cases(True)) if case.name == case_name)
    assert case.lacking(features_of(subject)) is None
    counted = simulate(subject, case, num_samples, num_samples // 4, 0, CPU)
    return fit(counted.counts, laws(case)).p_value, counted.num_faults


@pytest.mark.parametrize(("name", "way"), [(name, way) for name, ways in WAYS.items() for way in ways])
def test_a_lossless_package_passes(name, way):
    """Would catch an adapter that hands over other rows, temperatures or draft laws, or shares random numbers."""
    p_value, num_faults = found(name, way)
    assert p_value > LEVEL and num_faults == 0


@pytest.mark.parametrize(("name", "way"), [(name, way) for name, ways in BIASED.items() for way in ways])
def test_a_biased_package_is_rejected(name, way):
    p_value, _ = found(name, way)
    assert p_value < LEVEL
