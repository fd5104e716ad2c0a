"""SGLang's acceptance thresholds: what passes, on both cores, and what the rule is at its ends.

The distance of its first token from the target is tested in test_output_tv.py, that certification rejects it
with its controls.
"""

import pytest
import torch

from kernels.contract import Draft, Streams, Verification
from kernels.reference.verify import verify
from tests.support.emitted_laws import EXACT, law_of_method, random_tree, total_variation
from tests.support.kernel_rounds import LENGTHS, MIXED, assert_same_verdict, kernel_round
from tests.support.random_round import PLAIN, Method, sampling_of

NUM = 4000


def share_accepted(probability: float, **thresholds: float) -> float:
    """Of many drafts of one token to which the target gives this probability."""
    target = torch.tensor([probability, 1 - probability]).log().expand(2 * NUM, 2)
    draft = Draft(torch.zeros(NUM, 1, dtype=torch.long), torch.ones(NUM, dtype=torch.long))
    numbers = torch.arange(NUM)
    rule = Verification(Method.threshold, **thresholds)
    found = verify(target, draft, sampling_of(*[PLAIN] * NUM), rule, Streams(numbers, numbers * 0, numbers * 0))
    rejected = found.num_accepted == 0
    assert found.token_ids[rejected, 0].tolist() == [1] * int(rejected.sum()), "the rejected token is left out"
    return float(found.num_accepted.double().mean())


@pytest.mark.parametrize(
    ("probability", "thresholds", "expected"),
    [
        (0.3, {}, 0.3),
        (0.3, {"acc": 0.5}, 0.6),
        (0.3, {"acc": 0.25}, 1.0),
        (0.3, {"single": 0.29}, 1.0),
        (0.3, {"single": 0.31}, 0.3),
        (0.3, {"single": 0.31, "acc": 0.5}, 0.6),
    ],
)
def test_a_token_passes_by_either_threshold(probability: float, thresholds: dict, expected: float):
    assert share_accepted(probability, **thresholds) == pytest.approx(expected, abs=0.03)


def test_at_1_it_is_strict_and_below_it_is_not_lossless():
    tree = random_tree(seed=4, num_draft_tokens=2)
    strict, ones = (law_of_method(tree, Verification(method)) for method in (Method.strict, Method.threshold))
    torch.testing.assert_close(strict, ones, rtol=0, atol=EXACT)
    for thresholds in ({"single": 0.4}, {"acc": 0.6}):
        law = law_of_method(tree, Verification(Method.threshold, **thresholds))
        assert total_variation(tree, law) > 0.02


def test_the_kernels_read_both_thresholds():
    """Would catch parameters that change places."""
    batch = kernel_round(MIXED, LENGTHS, 12, seed=9)
    results = []
    for thresholds in ({}, {"single": 0.2}, {"acc": 0.01}):
        rule = Verification(Method.threshold, **thresholds)
        assert_same_verdict(batch.found(rule), batch.expected(rule))
        results.append(batch.expected(rule).num_accepted.tolist())
    assert len(set(map(tuple, results))) == 3


@pytest.mark.parametrize("thresholds", [{"single": 0.0}, {"acc": 1.1}])
def test_thresholds_out_of_range_are_refused(thresholds: dict):
    with pytest.raises(ValueError, match=r"must lie in \(0, 1\]"):
        Verification(Method.threshold, **thresholds)
