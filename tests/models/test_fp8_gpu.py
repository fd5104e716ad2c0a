"""Weights, keys and values of 8 bits at real sizes, on a GPU."""

from __future__ import annotations

import pytest
import torch

from harness.models.decoder_layer import classes_of
from harness.models.fp8_linear import FP8, dequantized, quantize, to_fp8
from harness.models.fused.operations import named_operations
from harness.models.fused.reference import silu_mul as reference_silu_mul
from harness.models.fused.rope_table import rope_table
from harness.models.fused.widen import widen
from tests.models.test_fused_gpu import CAPACITY, CONFIGS, CUDA, NUM_SLOTS, assert_as_exact_as_torch, drawn
from tests.support.fused_rows import check_attention, rows_of, same

pytestmark = pytest.mark.gpu
PRODUCTS = {
    "queries, keys, values": (6144, 4096, False),
    "down": (4096, 14336, False),
    "gate and up": (28672, 4096, True),
    "few rows, which torch multiplies": (1000, 4096, False),
}


@pytest.mark.parametrize("num_tokens", [1, 16, 64, 96, 100, 200, 300])
@pytest.mark.parametrize(("num_rows", "in_features", "gated"), PRODUCTS.values(), ids=PRODUCTS.keys())
def test_products_of_8_bits_at_real_sizes(num_rows: int, in_features: int, gated: bool, num_tokens: int):
    """By the kernel, and by torch beyond 256 tokens and with few rows. Would catch scales of another row."""
    kernels, states = named_operations("triton"), drawn(num_tokens, in_features, seed=1)
    sizes = torch.linspace(-9, -5, num_rows, device=CUDA).exp2()[:, None]
    codes, scales = quantize(drawn(num_rows, in_features, seed=2).float() * sizes)
    wide = dequantized(codes, scales, torch.bfloat16)
    same(widen(codes, scales, torch.bfloat16), wide)
    exact = states.double() @ wide.double().T
    theirs = torch.nn.functional.linear(states, wide)
    if gated:
        gate, up = exact.chunk(2, -1)
        exact, theirs = torch.nn.functional.silu(gate) * up, reference_silu_mul(theirs)
        found = kernels.gated_linear(states, codes, None, scales)
    else:
        found = kernels.linear(states, codes, None, scales, splits=True)
    assert_as_exact_as_torch(found, theirs, exact)


@pytest.mark.parametrize("num_tokens", [1, 4])
def test_caches_of_8_bits_at_real_sizes(num_tokens: int):
    """What is stored is what torch rounds, and attention reads it."""
    slots, starts = [0, 5, 2, 3], [100, 0, CAPACITY - num_tokens, 333]
    rows = rows_of(slots, starts, (NUM_SLOTS, 8, CAPACITY, 128), num_filled=num_tokens, dtype=torch.bfloat16)
    in_fp8 = rows._replace(keys=rows.keys.to(FP8), values=rows.values.to(FP8))
    check_attention(in_fp8, num_tokens, 32, dtype=torch.bfloat16)
    qkv = drawn(len(slots) * num_tokens, 48 * 128, seed=3)
    qkv *= torch.logspace(-9, 10, len(qkv), 2, dtype=qkv.dtype, device=CUDA)[:, None]
    table = rope_table(classes_of("llama").rotary(CONFIGS["llama"]()).to(CUDA), CAPACITY, CUDA)
    kernels = named_operations("triton")
    kernels.rotate_and_store(qkv, table, *in_fp8, dtype=torch.bfloat16)
    kernels.rotate_and_store(qkv, table, *rows)
    ours = torch.arange(CAPACITY, device=CUDA)
    for slot, start in zip(slots, starts, strict=True):
        places = (ours >= start) & (ours < start + num_tokens)
        for found, wide in zip(in_fp8[:2], rows[:2], strict=True):
            same(found[slot, :, places].float(), to_fp8(wide[slot, :, places]).float())
