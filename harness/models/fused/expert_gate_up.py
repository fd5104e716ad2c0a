"""First product of experts and their activation. Twin of harness.models.fused.reference.expert_gate_up.

    activated = silu(W_gate x) * (W_up x)       for each expert and each of its tokens

or, of gpt-oss, with biases and the gate of harness.models.fused.clamped_gate.

A program reads a tile of the rows of one expert's gate and up, once, and multiplies the tokens of that expert; programs
of experts without tokens end at once. Weights are the left operand, so that a few tokens do not leave the tile of a
tensor core empty. The shared expert, to which every token goes, is cut into programs of as many tokens, which lie side
by side and read the same weights at the same time, one of them from memory and the others from the L2 cache.

Source: Shazeer, GLU Variants Improve Transformer (2020); DeepSeek-AI, DeepSeek-V3 Technical Report (2024), section 2.1.

Shapes: N tokens, E experts, k experts of a token, H hidden size, I width of an expert, I_s of the shared one.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor, empty

from harness.models.fused.checks import check_dtype, check_tensor
from harness.models.fused.clamped_gate import ClampedGate
from harness.models.fused.routing import ExpertTiling, Routing, rows_of_tile

TILINGS = {2: ExpertTiling(64, 128, 3, 4), 4: ExpertTiling(32, 32, 2, 4)}
"""By bytes of a component. In 2-byte types a program has 2 blocks of 32 kB, of gate and up together, under way, and two
programs fit in a multiprocessor; reading 4.66 TB/s at a latency of 1 us takes 35 kB in each of 132. Measured on an H200
at the sizes of GLM-4.7-Flash: 4.4 TB/s with 16 and with 64 tokens."""


@triton.jit
def _biased(product, biases, rows, inside, dtype):
    """[columns, tokens] of a product that is rounded, and rounded again with its bias; in float32."""
    rounded = product.to(dtype).to(tl.float32)
    if biases is not None:
        bias = tl.load(biases + rows, mask=inside, other=0.0).to(tl.float32)
        rounded = (rounded + bias[:, None]).to(dtype).to(tl.float32)
    return rounded


@triton.jit
def _gated(gate, up, alpha, limit, dtype):
    """The activation of gate and up, in float32 and of their type's precision; rounds where transformers rounds."""
    if limit is None:
        silu = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)
        result = silu * up
    else:
        # minimum and maximum would make numbers of a NaN
        gate = tl.where(gate > limit, limit, gate)
        up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
        scaled = (gate * alpha).to(dtype).to(tl.float32)
        share = (1.0 / (1.0 + tl.exp(-scaled))).to(dtype).to(tl.float32)
        glu = (gate * share).to(dtype).to(tl.float32)
        result = (up + 1.0).to(dtype).to(tl.float32) * glu
    return result.to(dtype)


# Integers that follow the number of tokens: no compilation of its own for some of them.
@triton.jit(do_not_specialize=["num_tokens", "num_pairs", "num_shared", "num_chunks"])
def _expert_gate_up_kernel(
    states,  # [N, H]
    gate_up,  # [E, 2 I, H]
    shared,  # [2 I_s, H]; anything where num_shared is 0
    biases,  # [E, 2 I], None for none
    starts,  # [E + 1] int32
    tokens_at,  # [N * k] int32
    activated,  # [N * k * I + N * I_s]
    num_tokens,
    num_pairs,  # N * k
    num_shared,  # programs of the shared expert
    num_chunks,  # programs of one tile of it
    hidden_size,
    width,  # I
    shared_width,  # I_s
    alpha,  # of a clamped gate, whose rows and those of up take turns; None for silu
    limit,
    TILES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    program = tl.program_id(0)
    is_shared = program < num_shared
    if is_shared:
        tile, begin = program // num_chunks, program % num_chunks * ROWS
        end = tl.minimum(begin + ROWS, num_tokens)
        weights, size = shared, shared_width
        first_output = activated + num_pairs.to(tl.int64) * width
    else:
        expert, tile = (program - num_shared) // TILES, (program - num_shared) % TILES
        begin, end = tl.load(starts + expert), tl.load(starts + expert + 1)
        weights, size = gate_up + expert.to(tl.int64) * (2 * width * hidden_size), width
        first_output = activated
    columns = tile * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < size
    if limit is None:
        gate_rows = weights + columns.to(tl.int64)[:, None] * hidden_size
        up_rows = gate_rows + size.to(tl.int64) * hidden_size
        gate_at, up_at = columns, size + columns
    else:
        gate_rows = weights + columns.to(tl.int64)[:, None] * (2 * hidden_size)
        up_rows = gate_rows + hidden_size
        gate_at, up_at = 2 * columns, 2 * columns + 1
    if biases is not None:
        biases += (program - num_shared) // TILES * (2 * width)
    for first in range(begin, end, ROWS):
        places = first + tl.arange(0, ROWS)
        held = places < end
        token = tl.load(tokens_at + places, mask=held & (not is_shared), other=0)
        token = tl.where(is_shared, places, token)
        token_states = states + token.to(tl.int64)[:, None] * hidden_size
        gate = tl.full((COLUMNS, ROWS), 0.0, tl.float32)
        up = tl.full((COLUMNS, ROWS), 0.0, tl.float32)
        for depth in tl.range(0, hidden_size, BLOCK, num_stages=STAGES):
            at = depth + tl.arange(0, BLOCK)[None, :]
            state = tl.load(token_states + at, mask=held[:, None] & (at < hidden_size), other=0.0)
            gate_weight = tl.load(gate_rows + at, mask=inside[:, None] & (at < hidden_size), other=0.0)
            up_weight = tl.load(up_rows + at, mask=inside[:, None] & (at < hidden_size), other=0.0)
            gate = tl.dot(gate_weight, tl.trans(state), gate, input_precision="ieee")
            up = tl.dot(up_weight, tl.trans(state), up, input_precision="ieee")
        dtype = states.dtype.element_ty
        gate, up = _biased(gate, biases, gate_at, inside, dtype), _biased(up, biases, up_at, inside, dtype)
        result = _gated(gate, up, alpha, limit, dtype)
        outputs = first_output + places.to(tl.int64)[None, :] * size + columns[:, None]
        tl.store(outputs, result, mask=inside[:, None] & held[None, :])


def expert_gate_up(
    states: Tensor,
    gate_up: Tensor,
    shared: Tensor | None,
    routing: Routing,
    bias: Tensor | None = None,
    clamped: ClampedGate | None = None,
) -> Tensor:
    """Activate each expert's tokens.

    Args:
        states: [N, H] bfloat16, float16 or float32, without gaps.
        gate_up: [E, 2 I, H] of the same type: an expert's gate, then its up; of a clamped gate their rows take turns.
        shared: [2 I_s, H], the same of the shared expert; None for none.
        routing: of these states.
        bias: [E, 2 I] of the same type, of the rows of `gate_up`; without a shared expert alone. None for none.
        clamped: how gate and up are joined; None for silu.

    Returns:
        [N * k * I + N * I_s]: the rows of all pairs by place, then those of the shared expert by token. Products are
        summed in float32; rounding is where transformers rounds: gate and up, silu(gate), the product.
    """
    check_dtype("states", states)
    (num_tokens, hidden_size), (num_experts, double_width, _) = states.shape, gate_up.shape
    check_tensor("states", states, (num_tokens, hidden_size), states.dtype)
    check_tensor("gate_up", gate_up, (num_experts, double_width, hidden_size), states.dtype)
    if bias is not None:
        check_tensor("bias", bias, (num_experts, double_width), states.dtype)
    if shared is not None and (bias is not None or clamped is not None):
        raise ValueError("shared must be None with biases or a clamped gate")
    width, shared_width = double_width // 2, 0
    if shared is not None:
        check_tensor("shared", shared, (len(shared), hidden_size), states.dtype)
        shared_width = len(shared) // 2
    num_pairs = routing.places.numel()
    activated = empty(num_pairs * width + num_tokens * shared_width, dtype=states.dtype, device=states.device)
    tiling = TILINGS[states.element_size()]
    rows = rows_of_tile(num_tokens)
    num_tiles, num_chunks = triton.cdiv(width, tiling.columns), triton.cdiv(num_tokens, rows)
    num_shared = triton.cdiv(shared_width, tiling.columns) * num_chunks
    _expert_gate_up_kernel[(num_shared + num_experts * num_tiles,)](
        states=states,
        gate_up=gate_up,
        shared=gate_up if shared is None else shared,
        biases=bias,
        starts=routing.starts,
        tokens_at=routing.tokens,
        activated=activated,
        num_tokens=num_tokens,
        num_pairs=num_pairs,
        num_shared=num_shared,
        num_chunks=num_chunks,
        hidden_size=hidden_size,
        width=width,
        shared_width=shared_width,
        alpha=None if clamped is None else clamped.alpha,
        limit=None if clamped is None else clamped.limit,
        TILES=num_tiles,
        ROWS=rows,
        COLUMNS=tiling.columns,
        BLOCK=tiling.depth,
        STAGES=tiling.num_stages,
        num_warps=tiling.num_warps,
    )
    return activated
