"""Second product of experts. Twin of harness.models.fused.reference.expert_down.

    result = W_down activated + bias       for each expert and each of its tokens

A program reads a tile of the rows of one expert's matrix, once; see harness.models.fused.expert_gate_up.

Shapes: N tokens, E experts, k experts of a token, H hidden size, I width of an expert, I_s of the shared one.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor, empty

from harness.models.fused.checks import check_dtype, check_tensor
from harness.models.fused.routing import ExpertTiling, Routing, rows_of_tile

TILINGS = {2: ExpertTiling(64, 128, 4, 4), 4: ExpertTiling(32, 32, 2, 4)}
"""By bytes of a component; blocks of 16 kB in 2-byte types, as in harness.models.fused.expert_gate_up."""


# Integers that follow the number of tokens: no compilation of its own for some of them.
@triton.jit(do_not_specialize=["num_tokens", "num_pairs", "num_shared", "num_chunks"])
def _expert_down_kernel(
    activated,  # [N * k * I + N * I_s]
    down,  # [E, H, I]
    shared,  # [H, I_s]; anything where num_shared is 0
    biases,  # [E, H], None for none
    starts,  # [E + 1] int32
    results,  # [N * k + N, H]
    num_tokens,
    num_pairs,  # N * k
    num_shared,  # programs of the shared expert
    num_chunks,  # programs of one tile of it
    hidden_size,
    width,  # I
    shared_width,  # I_s
    TILES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    program = tl.program_id(0)
    if program < num_shared:
        tile, begin = program // num_chunks, program % num_chunks * ROWS
        end = tl.minimum(begin + ROWS, num_tokens)
        weights, size = shared, shared_width
        inputs = activated + num_pairs.to(tl.int64) * width
        first_output = results + num_pairs.to(tl.int64) * hidden_size
    else:
        expert, tile = (program - num_shared) // TILES, (program - num_shared) % TILES
        begin, end = tl.load(starts + expert), tl.load(starts + expert + 1)
        weights, size = down + expert.to(tl.int64) * (width * hidden_size), width
        inputs = activated
        first_output = results
    columns = tile * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < hidden_size
    weight_rows = weights + columns.to(tl.int64)[:, None] * size
    for first in range(begin, end, ROWS):
        places = first + tl.arange(0, ROWS)
        held = places < end
        rows = inputs + places.to(tl.int64)[:, None] * size
        result = tl.full((COLUMNS, ROWS), 0.0, tl.float32)
        for depth in tl.range(0, size, BLOCK, num_stages=STAGES):
            at = depth + tl.arange(0, BLOCK)[None, :]
            row = tl.load(rows + at, mask=held[:, None] & (at < size), other=0.0)
            weight = tl.load(weight_rows + at, mask=inside[:, None] & (at < size), other=0.0)
            result = tl.dot(weight, tl.trans(row), result, input_precision="ieee")
        outputs = first_output + places.to(tl.int64)[None, :] * hidden_size + columns[:, None]
        result = result.to(results.dtype.element_ty)
        if biases is not None:
            expert_biases = biases + (program - num_shared) // TILES * hidden_size
            bias = tl.load(expert_biases + columns, mask=inside, other=0.0).to(tl.float32)
            result = (result.to(tl.float32) + bias[:, None]).to(results.dtype.element_ty)
        tl.store(outputs, result, mask=inside[:, None] & held[None, :])


def expert_down(
    activated: Tensor, down: Tensor, shared: Tensor | None, routing: Routing, bias: Tensor | None = None
) -> Tensor:
    """Multiply each expert's activated tokens.

    Args:
        activated: what expert_gate_up returned.
        down: [E, H, I] of the same type.
        shared: [H, I_s] of the shared expert; None for none.
        routing: of these tokens.
        bias: [E, H] of the same type, without a shared expert alone; None for none.

    Returns:
        [N * k, H] the results of all pairs by place, and with a shared expert N more rows, its results by token.
        Products are summed in float32 and rounded once, and again where a bias was added.
    """
    check_dtype("activated", activated)
    (num_experts, hidden_size, width), num_tokens = down.shape, len(routing.places)
    check_tensor("down", down, (num_experts, hidden_size, width), activated.dtype)
    if bias is not None:
        check_tensor("bias", bias, (num_experts, hidden_size), activated.dtype)
        if shared is not None:
            raise ValueError("shared must be None with biases")
    num_pairs, shared_width = routing.places.numel(), 0
    if shared is not None:
        shared_width = shared.shape[1]
        check_tensor("shared", shared, (hidden_size, shared_width), activated.dtype)
    check_tensor("activated", activated, (num_pairs * width + num_tokens * shared_width,), activated.dtype)
    num_rows = num_pairs + (num_tokens if shared is not None else 0)
    results = empty(num_rows, hidden_size, dtype=activated.dtype, device=activated.device)
    tiling = TILINGS[activated.element_size()]
    rows = rows_of_tile(num_tokens)
    num_tiles, num_chunks = triton.cdiv(hidden_size, tiling.columns), triton.cdiv(num_tokens, rows)
    num_shared = num_tiles * num_chunks if shared is not None else 0
    _expert_down_kernel[(num_shared + num_experts * num_tiles,)](
        activated=activated,
        down=down,
        shared=down if shared is None else shared,
        biases=bias,
        starts=routing.starts,
        results=results,
        num_tokens=num_tokens,
        num_pairs=num_pairs,
        num_shared=num_shared,
        num_chunks=num_chunks,
        hidden_size=hidden_size,
        width=width,
        shared_width=shared_width,
        TILES=num_tiles,
        ROWS=rows,
        COLUMNS=tiling.columns,
        BLOCK=tiling.depth,
        STAGES=tiling.num_stages,
        num_warps=tiling.num_warps,
    )
    return results
