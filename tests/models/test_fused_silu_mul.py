"""The fused gate against its twin, and the twin against transformers."""

from __future__ import annotations

import pytest
import torch
from transformers.activations import ACT2FN

from harness.models.fused.reference import silu_mul as reference_silu_mul
from tests.support.fused_rows import DTYPES, assert_rounded_alike, normal, same, silu_error
from tests.support.kernel_rounds import DEVICE, poisoned_allocations


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [1, 63, 1056])
def test_kernel_equals_its_twin(size: int, dtype: torch.dtype):
    from harness.models.fused.gated_activation import silu_mul

    gate_up = normal(3, 2 * size, dtype=dtype, scale=3)
    with poisoned_allocations():
        found = silu_mul(gate_up)
    assert_rounded_alike(found, reference_silu_mul(gate_up), 2, silu_error(gate_up))


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # numpy's, of the interpreter: 1 / inf is meant
def test_gates_far_from_zero_are_open_or_closed():
    from harness.models.fused.gated_activation import silu_mul

    assert silu_mul(torch.tensor([[200.0, -200.0, 3.0, 3.0]], device=DEVICE)).tolist() == [[600.0, 0.0]]


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16], ids=str)
def test_twin_rounds_as_transformers_does(dtype: torch.dtype):
    gate_up = normal(5, 126, dtype=dtype, scale=3)
    same(reference_silu_mul(gate_up), ACT2FN["silu"](gate_up[:, :63]) * gate_up[:, 63:])


def test_what_would_be_misread_is_refused():
    from harness.models.fused.gated_activation import silu_mul

    with pytest.raises(ValueError, match=r"gate_up must be \[N, 2 I\], found \[3, 7\]"):
        silu_mul(normal(3, 7))
    with pytest.raises(ValueError, match="without gaps"):
        silu_mul(normal(8, 3).T)
