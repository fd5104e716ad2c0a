"""Rows of a slot cache for the tests of the fused operations, and how far a kernel may be from its twin.

Shapes as in harness.models.fused. Elements that an operation must not read are NaN.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from harness.models.fused.reference import slot_attention as reference_slot_attention
from harness.models.fused.tree_rows import TreeRows
from tests.support.kernel_rounds import DEVICE, poisoned_allocations

HALF_UNIT = 2.0**-24
"""Relative error of one rounding to float32, in which all kernels compute."""
DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if DEVICE.type == "cuda" else [])]
"""Triton's interpreter cuts bfloat16 off where a GPU rounds, and multiplies its bits: that type needs a GPU."""


class Rows(NamedTuple):
    """Where the tokens of a call are."""

    keys: Tensor
    """[S, Hk, C, D]."""
    values: Tensor
    """[S, Hk, C, D]."""
    slots: Tensor
    """[R] int64."""
    starts: Tensor
    """[R] int64."""


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
    """Random numbers, the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(shape, generator=generator)).to(device=DEVICE, dtype=dtype)


def rows_of(
    slots: list[int],
    starts: list[int],
    shape: tuple[int, int, int, int],
    *,
    num_filled: int,
    dtype: torch.dtype = torch.float32,
) -> Rows:
    """Rows over a cache of a shape [S, Hk, C, D] that holds random numbers, and NaN where there is nothing yet.

    num_filled: T where the rows' own keys are there already, 0 where they are yet to be written.
    """
    keys, values = normal(*shape, seed=1, dtype=dtype), normal(*shape, seed=2, dtype=dtype)
    for slot in range(shape[0]):
        ends = [start + num_filled for row, start in zip(slots, starts, strict=True) if row == slot]
        end = max(ends, default=0) if num_filled else min(ends, default=0)
        for tensor in (keys, values):
            tensor[slot, :, end:] = torch.nan
    return Rows(keys, values, torch.tensor(slots, device=DEVICE), torch.tensor(starts, device=DEVICE))


def assert_rounded_alike(found: Tensor, expected: Tensor, num_roundings: int, float32_error: float) -> None:
    """Both were computed in float32, up to `float32_error`, and rounded to their type so many times.

    A rounding of two numbers that are nearly the same leaves them one unit in the last place apart at most, and does so
    only where a boundary lies between them: at a share of about float32_error / unit of all numbers.
    """
    unit = torch.finfo(expected.dtype).eps if expected.dtype != torch.float32 else 0.0
    largest = float(expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=num_roundings * unit + float32_error, atol=float32_error * largest)
    if unit:
        num_allowed = 1 + 4 * num_roundings * float32_error / unit * expected.numel()
        assert int((found != expected).sum()) <= num_allowed


def attention_error(queries: Tensor, rows: Rows, scaling: float) -> tuple[float, float]:
    """(relative, absolute) distance of two ways to attend in float32 that round as harness.models.fused does.

    A product of D terms is off by D roundings of its largest possible size; the exponential turns that into a relative
    error of a weight, and so do the sums over the keys and the rounding of the weight. Both ways err.
    """
    width, capacity = queries.shape[-1], rows.keys.shape[2]
    largest_key, largest_value = (float(tensor.float().nan_to_num().abs().max()) for tensor in rows[:2])
    largest_score = float(queries.float().abs().sum(-1).max()) * largest_key * scaling
    eps = 0.0 if queries.dtype == torch.float32 else torch.finfo(queries.dtype).eps
    relative = 2 * HALF_UNIT * (width * largest_score + capacity + 8) + eps / 2
    return eps, relative * largest_value


def silu_error(gate_up: Tensor) -> float:
    """Relative distance of two ways to compute silu(gate) * up in float32.

    exp(x) as a power of two rounds x log2(e), which costs |x| roundings of the result; a power, a quotient and a sum
    are good to two units each, and a product to one.
    """
    return HALF_UNIT * (float(gate_up.abs().max()) + 14)


def check_attention(
    rows: Rows,
    num_tokens: int,
    num_heads: int,
    tree: TreeRows | None = None,
    dtype: torch.dtype | None = None,
    **extras: Any,
) -> None:
    """The kernel against its twin on random queries, of the keys' type unless another is given.

    extras: windows, sinks and soft cap.
    """
    from harness.models.fused.slot_attention import slot_attention

    width = rows.keys.shape[3]
    queries = normal(len(rows.slots), num_tokens, num_heads, width, seed=4, dtype=dtype or rows.keys.dtype)
    with poisoned_allocations():
        found = slot_attention(queries, *rows, width**-0.5, tree, **extras)
    expected = reference_slot_attention(queries, *rows, width**-0.5, tree, **extras)
    relative, absolute = attention_error(queries, rows, width**-0.5)
    torch.testing.assert_close(found, expected, rtol=relative, atol=absolute)


def same(found: Tensor, expected: Tensor) -> None:
    """Bit for bit, NaN included."""
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
