"""The kernels against the reference where the draft-logit cache is of another type than the target's logits."""

from dataclasses import replace

import pytest
import torch

from tests.support.kernel_rounds import assert_same_verdict, kernel_round
from tests.support.random_round import PLAIN, Method, verification_of

FLOAT32, BFLOAT16, FLOAT16 = torch.float32, torch.bfloat16, torch.float16
CUT = (0.8, 0, 0.9, 0.0)


@pytest.mark.parametrize(
    ("method", "target_dtype", "cache_dtype", "last"),
    [
        pytest.param(Method.probabilistic, FLOAT32, BFLOAT16, PLAIN, id="probabilistic, bfloat16 cache"),
        pytest.param(Method.block, FLOAT32, FLOAT16, PLAIN, id="block, float16 cache"),
        pytest.param(Method.block, BFLOAT16, FLOAT32, CUT, id="block, wider cache, truncated"),
    ],
)
def test_a_cache_of_another_type(method, target_dtype, cache_dtype, last):
    """Statistics are read from the cache itself. Would catch rows that are read with the size of the target's type."""
    batch = kernel_round([PLAIN, (0.7, 0, 1.0, 0.0), PLAIN, last], [2, 2, 1, 2], 63, target_dtype, seed=6)
    batch = replace(batch, draft=replace(batch.draft, logits=batch.draft.logits.to(cache_dtype)))
    verification = verification_of(method)
    found = batch.found(verification)
    assert_same_verdict(found, batch.expected(verification))
    assert len(found.num_accepted.unique()) > 1
