"""The law of one draw of the Triton kernels, from the very numbers that they compute.

The kernel chooses a chunk by its mass and a token in it by a float64 prefix sum of its float32 weights; the last token
with a weight takes what rounding leaves of the chunk's mass. So token t of chunk c, with prefix sum s(t), has

    probability = | [s(t - 1), s(t)) within [0, mass_c) | / sum of masses

and the last such token of the chunk whatever is left up to mass_c. The masses are read from the workspace after a real
draw, the weights are computed once more by the kernels' own function.

Shapes: V the vocabulary, C chunks of CHUNK tokens.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.contract import RowStats, Sampling, Streams
from kernels.draw import draw
from kernels.launch.workspace import Workspace, chunk_size
from kernels.random.streams import Purpose
from kernels.rows.softmax_weights import scale, weigh


@triton.jit
def _weights_kernel(logits, vocab_size, maximum, threshold, temperature, weights, CHUNK: tl.constexpr):
    offsets = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    inside = offsets < vocab_size
    values = tl.load(logits + offsets, mask=inside, other=-float("inf")).to(tl.float32)
    high, low = scale(tl.load(temperature))
    found = weigh(values, tl.load(maximum), high, low)
    found = tl.where(values >= tl.load(threshold), found, 0.0)
    tl.store(weights + offsets, found, mask=inside)


def kernel_law(logits: Tensor, sampling: Sampling) -> Tensor:
    """The probability with which the kernels draw each token.

    Args:
        logits: [V] bfloat16, float16 or float32, where the kernels run; it has a distribution.
        sampling: fields [1], temperature above 0.

    Returns:
        [V] float64.
    """
    device, vocab_size = logits.device, len(logits)
    chunk = chunk_size(vocab_size)
    num_chunks = -(-vocab_size // chunk)
    stats = RowStats.empty(1, device=device)
    zero = torch.zeros(1, dtype=torch.long, device=device)
    workspace = Workspace()
    draw(logits[None], sampling, Streams(zero, zero, zero), Purpose.draft, row_stats=stats, workspace=workspace)
    if sampling.truncates:
        masses = workspace.buffer("masses", num_chunks, torch.float64, device)[:num_chunks].clone()
    else:
        maxima = workspace.buffer("chunk_maximum", num_chunks, torch.float32, device)[:num_chunks]
        sums = workspace.buffer("chunk_sum", num_chunks, torch.float64, device)[:num_chunks]
        masses = sums * ((maxima - stats.maximum).double() / sampling.temperature.double()).exp()
    weights = torch.zeros(num_chunks * chunk, device=device)
    _weights_kernel[(num_chunks,)](
        logits, vocab_size, stats.maximum, stats.threshold, sampling.temperature, weights, CHUNK=chunk
    )
    return law_of_chunks(weights.view(num_chunks, chunk).double(), masses).flatten()[:vocab_size]


def law_of_chunks(weights: Tensor, masses: Tensor) -> Tensor:
    """The law of a draw that chooses a chunk by its mass and a token in it by prefix sums.

    Args:
        weights: [C, CHUNK] float64.
        masses: [C] float64, near the sums of the rows of `weights`.

    Returns:
        [C, CHUNK] float64, sums to 1.
    """
    upper = torch.minimum(weights.cumsum(dim=1), masses[:, None])
    probability = upper - torch.cat([torch.zeros_like(upper[:, :1]), upper[:, :-1]], dim=1)
    index = torch.arange(weights.shape[1], device=weights.device)
    last = torch.where(weights > 0, index, 0).amax(dim=1, keepdim=True)
    probability.scatter_add_(1, last, (masses - upper[:, -1]).clamp(min=0.0)[:, None])
    return probability / masses.sum()
