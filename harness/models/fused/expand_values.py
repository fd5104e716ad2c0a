"""Apply the map of the values to attended latents. Twin of harness.models.fused.reference.expand_values.

    value = W_v latent      W_v [V, L] of each head

A program multiplies a tile of tokens by a tile of the rows of one head's W_v.
Source: DeepSeek-AI, DeepSeek-V2 (2024), section 2.1.

Shapes: N tokens, Hq heads, D_n width of a head's unrotated query, V width of a head's value, L width of a latent.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor, empty

from harness.models.fused.checks import check_dtype, check_tensor

COLUMNS = 32
"""Rows of W_v, of a program: with 20 heads of 256, 160 programs read 32 kB each."""
BLOCK = 128
"""Components of a latent that are multiplied at a time."""
NUM_STAGES = 4
MIN_ROWS, MAX_ROWS = 16, 64
"""Tokens of a program."""
NUM_WARPS = 4


@triton.jit
def _expand_values_kernel(
    attended,  # [N, Hq, L]
    expansion,  # [Hq, D_n + V, L]
    values,  # [N, Hq, V]
    num_all,  # N
    nope_width,  # D_n
    value_width,  # V
    latent_width,  # L
    HEADS: tl.constexpr,
    TILES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    head, tile = tl.program_id(0) // TILES, tl.program_id(0) % TILES
    tokens = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    columns = tile * COLUMNS + tl.arange(0, COLUMNS)
    held, inside = (tokens < num_all)[:, None], (columns < value_width)[:, None]
    place = tokens.to(tl.int64)[:, None] * HEADS + head
    latents = attended + place * latent_width
    first = head.to(tl.int64) * (nope_width + value_width) + nope_width
    weights = expansion + (first + columns)[:, None] * latent_width
    result = tl.full((ROWS, COLUMNS), 0.0, tl.float32)
    for depth in tl.range(0, latent_width, BLOCK, num_stages=STAGES):
        at = depth + tl.arange(0, BLOCK)[None, :]
        latent = tl.load(latents + at, mask=held & (at < latent_width), other=0.0)
        weight = tl.load(weights + at, mask=inside & (at < latent_width), other=0.0)
        result = tl.dot(latent, tl.trans(weight), result, input_precision="ieee")
    outputs = values + place * value_width + columns[None, :]
    tl.store(outputs, result.to(values.dtype.element_ty), mask=held & (columns < value_width)[None, :])


def expand_values(attended: Tensor, expansion: Tensor, value_width: int) -> Tensor:
    """Turn attended latents into attended values.

    Args:
        attended: [N, Hq, L] bfloat16, float16 or float32, without gaps.
        expansion: [Hq, D_n + V, L] of the same type, the weight of kv_b_proj.
        value_width: V.

    Returns:
        [N, Hq * V], summed in float32 and rounded once.
    """
    check_dtype("attended", attended)
    num_all, num_heads, latent_width = attended.shape
    check_tensor("attended", attended, (num_all, num_heads, latent_width), attended.dtype)
    check_tensor("expansion", expansion, (num_heads, expansion.shape[1], latent_width), attended.dtype)
    values = empty(num_all, num_heads * value_width, dtype=attended.dtype, device=attended.device)
    rows = min(MAX_ROWS, max(MIN_ROWS, triton.next_power_of_2(num_all)))
    num_tiles = triton.cdiv(value_width, COLUMNS)
    _expand_values_kernel[(num_heads * num_tiles, triton.cdiv(num_all, rows))](
        attended=attended,
        expansion=expansion,
        values=values,
        num_all=num_all,
        nope_width=expansion.shape[1] - value_width,
        value_width=value_width,
        latent_width=latent_width,
        HEADS=num_heads,
        TILES=num_tiles,
        ROWS=rows,
        COLUMNS=COLUMNS,
        BLOCK=BLOCK,
        STAGES=NUM_STAGES,
        num_warps=NUM_WARPS,
    )
    return values
