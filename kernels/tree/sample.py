"""The end of a walk through a tree: the token after the accepted ones, and the verdict."""

from __future__ import annotations

import triton
import triton.language as tl

from ..chain.residual import residual_weights
from ..chain.sample_next import STRIP, find_token
from ..rows.softmax_weights import total


@triton.jit
def emit(
    target, draft, tokens, temperature, rows, walk, output, request, level, opened, removed, num_removed, masses,
    argmax, uniform_number, flagged, is_left, columns,
    READS_DRAFT: tl.constexpr, TRUNCATED: tl.constexpr, CHUNK: tl.constexpr, CHUNKS_PADDED: tl.constexpr,
):  # fmt: skip
    """Draw the token after `level` accepted ones, and write the rest of the verdict.

    Args:
        opened: the rows at the last accepted node, from kernels.tree.residual.open_node.
        removed, num_removed: what was rejected of one-hot children.
        masses: [CHUNKS_PADDED] float64, of the chunks.
        argmax: of the target row.
        flagged: whether the request is.
        is_left: the masses are those of what rejected children leave, and may be 0 by rounding.
    """
    normalizer = opened[11]
    token = tl.where(normalizer == normalizer, argmax, 0)
    if (temperature != 0) & (normalizer == normalizer):
        whole = tl.sum(masses, axis=0)
        if is_left:
            if whole == 0:
                # The target's own distribution takes the place of nothing. In strips, because what is rare must not
                # cost registers.
                opened = (
                    opened[0], opened[1], opened[2], opened[3], opened[4], opened[5], opened[6] * 0, opened[7] * 0,
                    opened[8], opened[9], opened[10], opened[11], opened[12], opened[13],
                )  # fmt: skip
                num_removed = num_removed * 0
                places = tl.arange(0, CHUNKS_PADDED)
                for strip in range(rows.num_chunks * (CHUNK // STRIP)):
                    offsets = strip * STRIP + tl.arange(0, STRIP)
                    mass = total(residual_weights(target, draft, opened, offsets, READS_DRAFT, TRUNCATED), STRIP)
                    masses += tl.where(places == strip // (CHUNK // STRIP), mass, 0.0)
                whole = tl.sum(masses, axis=0)
        token = find_token(
            target, draft, opened, masses, uniform_number * whole, READS_DRAFT, TRUNCATED, CHUNK, CHUNKS_PADDED,
            (removed, num_removed),
        )  # fmt: skip
    row = request.to(tl.int64)
    emitted = tl.where(columns == level, token, -1).to(tl.int64)
    written = (columns >= level) & (columns <= tokens.width)
    tl.store(output.token_ids + row * (tokens.width + 1) + columns, emitted, mask=written)
    accepted = tl.full(columns.shape, -1, tl.int64)
    tl.store(walk.path + row * tokens.width + columns, accepted, mask=(columns >= level) & (columns < tokens.width))
    tl.store(output.num_accepted + row, level.to(tl.int64))
    tl.store(output.invalid + row, flagged)
