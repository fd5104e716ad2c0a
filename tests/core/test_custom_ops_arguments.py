"""Every argument of the custom operations arrives: their results are those of the core's own functions."""

import pytest
import torch

from kernels import custom_ops
from kernels.contract import RowStats, TokenMask
from kernels.core import core_for
from kernels.random.streams import Purpose
from tests.support.custom_op_calls import every_argument, rows, verified
from tests.support.kernel_rounds import DEVICE, assert_same_drawn, assert_same_verdict
from tests.support.random_round import Method, verification_of

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("method", [Method.block, Method.typical, Method.synthetic], ids=lambda method: method.value)
def test_verification_is_that_of_the_core(method: Method):
    verification, core = verification_of(method), core_for(DEVICE)
    for batch in every_argument():
        arguments = (batch.target_logits, batch.draft, batch.sampling, verification, batch.streams)
        assert_same_verdict(verified(batch, verification, None), core.verify(*arguments, mask=batch.mask))


@pytest.mark.parametrize("kind", ["free", "masked", "mapped"])
def test_rows_are_drawn_and_looked_up_as_by_the_core(kind: str):
    core, (logits, sampling, streams) = core_for(DEVICE), rows(12)
    words = torch.randint(-(2**31), 2**31, (12, 3), generator=torch.Generator().manual_seed(1)).int().to(DEVICE)
    mask = TokenMask(words, torch.arange(12, device=DEVICE)) if kind == "masked" else None
    ids = torch.randperm(90)[:70].to(DEVICE) if kind == "mapped" else None
    stats, kept = RowStats.empty(12, device=DEVICE), RowStats.empty(12, device=DEVICE)
    arguments = logits, sampling, streams, Purpose.bonus, ids
    expected = core.draw(*arguments, row_stats=stats, mask=mask)
    assert_same_drawn(custom_ops.draw(*arguments, kept, mask), expected)
    assert all(
        torch.equal(getattr(kept, name), getattr(stats, name)) for name in ("maximum", "normalizer", "threshold")
    )
    arguments = logits, sampling, streams, 90, ids
    assert_same_drawn(custom_ops.coupled_draw(*arguments, mask), core.coupled_draw(*arguments, mask=mask))
    if kind != "mapped":
        arguments = logits, expected.token_ids, 3, sampling, mask
        found = zip(custom_ops.logprobs(*arguments), core.logprobs(*arguments), strict=True)
        assert all(torch.equal(ours, theirs) for ours, theirs in found)
