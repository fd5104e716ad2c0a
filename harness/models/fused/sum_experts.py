"""Weight and add the results of a token's experts. Twin of harness.models.fused.reference.sum_experts.

    output = sum_j weight_j result_j + result of the shared expert

The experts of a token are added in ascending order.

Shapes: N tokens, k experts of a token, H hidden size.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor, empty

from harness.models.fused.checks import check_dtype, check_tensor
from harness.models.fused.routing import Routing

BLOCK = 1024
"""Components that a program adds: with 4 warps, 8 a thread, one 16-byte load of each 2-byte result. 64 tokens of 2048
make 128 programs."""
NUM_WARPS = 4


@triton.jit(do_not_specialize=["num_pairs"])
def _sum_experts_kernel(
    results,  # [N * k, H], or [N * k + N, H]
    places,  # [N, k] int32
    weights,  # [N, k] float32
    output,  # [N, H]
    num_pairs,  # N * k
    hidden_size,
    HAS_SHARED: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < hidden_size
    total = tl.full((BLOCK,), 0.0, tl.float32)
    for choice in tl.static_range(TOP_K):
        place = tl.load(places + token * TOP_K + choice).to(tl.int64)
        weight = tl.load(weights + token * TOP_K + choice)
        total += weight * tl.load(results + place * hidden_size + columns, mask=inside, other=0.0).to(tl.float32)
    rounded = total.to(output.dtype.element_ty)
    if HAS_SHARED:
        at = (num_pairs + token) * hidden_size + columns
        shared = tl.load(results + at, mask=inside, other=0.0)
        rounded = (rounded.to(tl.float32) + shared.to(tl.float32)).to(rounded.dtype)
    tl.store(output + token * hidden_size + columns, rounded, mask=inside)


def sum_experts(results: Tensor, routing: Routing) -> Tensor:
    """Put the experts together.

    Args:
        results: [N * k, H] bfloat16, float16 or float32 by place, without gaps; with a shared expert [N * k + N, H].
        routing: of these tokens.

    Returns:
        [N, H]. The weighted sum is kept in float32 and rounded; the shared expert is added to it and rounded again, as
        Glm4MoeLiteMoE of transformers does.

    Raises:
        ValueError: the results' shape, type or layout is not as above.
    """
    check_dtype("results", results)
    num_tokens, top_k = routing.places.shape
    num_rows, hidden_size = results.shape
    has_shared = num_rows != num_tokens * top_k
    check_tensor("results", results, (num_tokens * (top_k + 1 if has_shared else top_k), hidden_size), results.dtype)
    output = empty(num_tokens, hidden_size, dtype=results.dtype, device=results.device)
    _sum_experts_kernel[(num_tokens, triton.cdiv(hidden_size, BLOCK))](
        results=results,
        places=routing.places,
        weights=routing.weights,
        output=output,
        num_pairs=num_tokens * top_k,
        hidden_size=hidden_size,
        HAS_SHARED=has_shared,
        TOP_K=top_k,
        BLOCK=BLOCK,
        num_warps=NUM_WARPS,
    )
    return output
