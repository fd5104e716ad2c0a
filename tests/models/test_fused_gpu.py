"""What only a GPU can show of the fused operations: real sizes, CUDA graphs, far addresses, no waiting for it."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, Qwen3Config

from harness.models.decoder_layer import classes_of
from harness.models.fp8_linear import FP8, dequantized, quantize, to_fp8, use_fp8
from harness.models.fused.fuse import fusion_obstacle, pack_layer
from harness.models.fused.layer import LayerOutput, decoder_layer
from harness.models.fused.operations import Operations, named_operations
from harness.models.fused.reference import silu_mul as reference_silu_mul
from harness.models.fused.rope_table import rope_table
from harness.models.fused.widen import widen
from tests.support.fused_rows import (
    HALF_UNIT,
    Rows,
    assert_rounded_alike,
    attention_error,
    check_attention,
    normal,
    rows_of,
    same,
    silu_error,
)

pytestmark = pytest.mark.gpu


CUDA = torch.device("cuda")
CAPACITY, NUM_SLOTS = 1024, 8
SIZES: dict[str, Any] = {
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_hidden_layers": 1,
    "max_position_embeddings": CAPACITY,
}
CONFIGS = {
    "llama": lambda: LlamaConfig(**SIZES, intermediate_size=14336, rms_norm_eps=1e-5),
    "qwen3": lambda: Qwen3Config(**SIZES, intermediate_size=12288, rms_norm_eps=1e-6),
}
# Rows of one slot one after another, a row that fills its slot, an empty one; the last two share the spare slot 7.
SLOTS = [[0, 0, 5, 2, 3, 7, 7], [1, 1, 4, 6, 0, 7, 7]]
NUM_OWN = 5
"""Rows that share their positions with no other."""
LAYER_ERROR = 8 * 2**-8
"""Of the norms of bfloat16 results: two ways to compute a layer differ in a rounding of half a unit, 2^-8, at 8 places:
two norms, rotation, weights and result of attention, its projection, activation, the last projection."""


def starts_of(num_tokens: int) -> list[list[int]]:
    return [[100, 100 + num_tokens, 0, CAPACITY - num_tokens, 333, 0, 0], [0, num_tokens, 64, 511, 7, 0, 0]]


class Fused(NamedTuple):
    """A layer at real size, and what it is called with."""

    layer: Any
    table: Tensor
    states: Tensor
    residual: Tensor
    rows: Rows

    def __call__(self, operations: Operations) -> LayerOutput:
        return decoder_layer(self.layer, self.states, self.residual, self.table, *self.rows, operations)

    def on_a_copy(self) -> tuple[LayerOutput, Rows]:
        """What the twins do to a copy of the cache."""
        rows = self.rows._replace(keys=self.rows.keys.clone(), values=self.rows.values.clone())
        return self._replace(rows=rows)(named_operations("reference")), rows

    def refill(self, index: int, seed: int) -> None:
        """Other states, slots and starts, and a cache that is NaN behind them."""
        num_tokens = self.states.shape[1]
        slots, starts = SLOTS[index], starts_of(num_tokens)[index]
        rows = rows_of(slots, starts, tuple(self.rows.keys.shape), num_filled=0, dtype=torch.bfloat16)
        for into, source in zip(self.rows, rows, strict=True):
            into.copy_(source)
        for into, number in ((self.states, seed), (self.residual, seed + 1)):
            into.copy_(normal(*into.shape, seed=number, dtype=torch.bfloat16))


def fused_layer(kind: str, num_tokens: int, in_fp8: bool = False) -> Fused:
    types, config = classes_of(kind), CONFIGS[kind]()
    torch.manual_seed(0)
    with CUDA:
        layer, rotary = types.layer(config, 0), types.rotary(config)
    layer = layer.to(torch.bfloat16).eval().requires_grad_(False)
    assert fusion_obstacle(layer, rotary) is None
    if in_fp8:
        weights = {name: child.weight for name, child in layer.named_modules() if type(child) is torch.nn.Linear}
        use_fp8(layer)
        for name, weight in weights.items():
            projection, rounded = layer.get_submodule(name), quantize(weight)
            projection.weight.copy_(rounded.codes)
            projection.scales.copy_(rounded.scales)
    pack_layer(layer)
    rows = rows_of(
        SLOTS[0], starts_of(num_tokens)[0], (NUM_SLOTS, 8, CAPACITY, 128), num_filled=0, dtype=torch.bfloat16
    )
    states, residual = (normal(len(SLOTS[0]), num_tokens, 4096, seed=seed, dtype=torch.bfloat16) for seed in (8, 9))
    return Fused(layer, rope_table(rotary, CAPACITY, CUDA), states, residual, rows)


def assert_near(found: Tensor, expected: Tensor) -> None:
    distance = (found.float() - expected.float()).norm() / expected.float().norm()
    assert float(distance) <= LAYER_ERROR


def assert_same_layer(found: LayerOutput, fused: Fused, expected: LayerOutput, rows: Rows, empty: Tensor) -> None:
    """The same states, and the same keys and values where there were none; the spare slot, the last, holds either's."""
    states = found.states.sum(0) if found.states.dim() > found.residual.dim() else found.states
    for mine, twins in zip(found._replace(states=states), expected, strict=True):
        assert_near(mine[:NUM_OWN], twins[:NUM_OWN])
    for mine, twins in ((fused.rows.keys, rows.keys), (fused.rows.values, rows.values)):
        assert torch.equal(mine.isnan(), twins.isnan())
        written = empty[:-1] & ~twins[:-1].isnan()
        assert_near(mine[:-1][written], twins[:-1][written])
        same(mine[:-1][~written], twins[:-1][~written])


@pytest.mark.parametrize(
    ("kind", "num_tokens", "in_fp8"),
    [
        ("llama", 1, False),
        ("llama", 4, False),
        ("qwen3", 6, False),
        ("llama", 1, True),
        ("qwen3", 6, True),
        # more tokens than products with wider weights take
        ("llama", 30, True),
    ],
)
def test_graph_replays_on_changed_rows(kind: str, num_tokens: int, in_fp8: bool):
    fused = fused_layer(kind, num_tokens, in_fp8)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        fused(named_operations("triton"))
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = fused(named_operations("triton"))
    for index in (0, 1, 0):
        fused.refill(index, seed=10 * index)
        empty = fused.rows.keys.isnan()
        expected, rows = fused.on_a_copy()
        graph.replay()
        assert_same_layer(found, fused, expected, rows, empty)


def test_nothing_waits_for_the_device():
    fused = fused_layer("qwen3", 4)
    fused(named_operations("triton"))
    torch.cuda.set_sync_debug_mode("error")
    try:
        fused(named_operations("triton"))
    finally:
        torch.cuda.set_sync_debug_mode("default")


ATTENTION = {
    "one row": (1, 1, 32, 8, 128),
    "16 rows": (16, 4, 32, 8, 128),
    "64 rows": (64, 4, 32, 8, 128),
    "9 tokens": (5, 9, 32, 8, 128),
    "groups of 16 tokens": (32, 16, 32, 8, 128),
    "built-in target": (3, 4, 4, 2, 64),
    "many queries of wide heads": (4, 9, 64, 4, 256),
}
"""Rows, tokens, heads, key heads, width."""
OTHER_DTYPES = [(name, dtype) for name in ("16 rows", "built-in target") for dtype in (torch.float16, torch.float32)]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.bfloat16) for name in ATTENTION), ("many queries of wide heads", torch.float32), *OTHER_DTYPES],
    ids=str,
)
def test_attention_at_real_sizes(name: str, dtype: torch.dtype):
    """Every length from one key to a full slot."""
    num_rows, num_tokens, num_heads, num_key_heads, width = ATTENTION[name]
    starts = [(CAPACITY - num_tokens) * row // max(num_rows - 1, 1) for row in range(num_rows)]
    shape = (num_rows, num_key_heads, CAPACITY, width)
    check_attention(
        rows_of(list(range(num_rows)), starts, shape, num_filled=num_tokens, dtype=dtype), num_tokens, num_heads
    )


@pytest.mark.parametrize("num_rows", [1, 16])
@pytest.mark.parametrize(
    ("heads", "window", "softcap"),
    [((64, 8, 64), 128, None), ((16, 8, 256), 512, None), ((32, 16, 128), 300, 50.0)],
    ids=["gpt-oss, with sinks", "Gemma 3", "Gemma 2"],
)
def test_attention_of_families_at_real_sizes(
    heads: tuple[int, int, int], window: int, softcap: float | None, num_rows: int
):
    """In bfloat16. Would catch a window that begins within a program's share, and a sink that several count."""
    num_tokens, (num_heads, num_key_heads, width) = 4, heads
    starts = [(CAPACITY - num_tokens) * (row + 1) // num_rows for row in range(num_rows)]
    shape = (num_rows, num_key_heads, CAPACITY, width)
    rows = rows_of(list(range(num_rows)), starts, shape, num_filled=num_tokens, dtype=torch.bfloat16)
    extras = {"windows": torch.full_like(rows.starts, window), "softcap": softcap}
    sinks = normal(num_heads, seed=7, dtype=torch.bfloat16, scale=3) if width == 64 else None
    check_attention(rows, num_tokens, num_heads, sinks=sinks, **extras)


@pytest.mark.parametrize("num_tokens", [1, 64, 2048])
def test_small_operations_at_real_sizes(num_tokens: int):
    from harness.models.fused.gated_activation import silu_mul

    kernels, twins = named_operations("triton"), named_operations("reference")
    states, residual = (normal(num_tokens, 4096, seed=seed, dtype=torch.bfloat16) for seed in (1, 2))
    weight, gate_up = 1 + states[0] / 8, normal(num_tokens, 2 * 14336, seed=3, dtype=torch.bfloat16)
    (normed, total), expected = (each.add_rms_norm(states, residual, weight, 1e-5) for each in (kernels, twins))
    same(total, expected[1])
    assert_rounded_alike(normed, expected[0], 2, HALF_UNIT * (4096 + 8))
    assert_rounded_alike(silu_mul(gate_up), reference_silu_mul(gate_up), 2, silu_error(gate_up))


PRODUCTS = {
    "queries, keys, values": (6144, 4096, True),
    "output": (4096, 4096, True),
    "down": (4096, 14336, True),
    "logits": (128256, 4096, False),
    "a head's features": (4096, 8192, False),
}
"""Rows of a weight, components of a token, whether shares may be returned."""


def drawn(*shape: int, seed: int, scale: float = 1.0) -> Tensor:
    """Random numbers, made on the device: a CPU would take seconds for them."""
    generator = torch.Generator(CUDA).manual_seed(seed)
    return scale * torch.randn(shape, generator=generator, dtype=torch.bfloat16, device=CUDA)


def assert_as_exact_as_torch(found: Tensor, theirs: Tensor, exact: Tensor) -> None:
    """Both sum in float32 and round to the type; shares are summed and rounded here."""
    total = found.sum(0).to(theirs.dtype) if found.dim() > theirs.dim() else found
    distances = [float((tensor.double() - exact).norm() / exact.norm()) for tensor in (total, theirs)]
    assert distances[0] <= 1.05 * distances[1] + 1e-5


@pytest.mark.parametrize("num_tokens", [1, 16, 32, 64, 70, 96])
@pytest.mark.parametrize(("num_rows", "in_features", "splits"), PRODUCTS.values(), ids=PRODUCTS.keys())
def test_products_at_real_sizes(num_rows: int, in_features: int, splits: bool, num_tokens: int):
    kernels = named_operations("triton")
    states, weight = drawn(num_tokens, in_features, seed=1), drawn(num_rows, in_features, seed=2)
    bias = drawn(num_rows, seed=3)
    for added in (None, bias):
        found = kernels.linear(states, weight, added, splits=splits)
        exact = states.double() @ weight.double().T + (0.0 if added is None else added.double())
        assert_as_exact_as_torch(found, torch.nn.functional.linear(states, weight, added), exact)
        same(kernels.linear(states, weight, added, splits=splits), found)


@pytest.mark.parametrize("num_tokens", [1, 16, 32, 64, 96])
@pytest.mark.parametrize("intermediate_size", [14336, 12288])
def test_gated_products_at_real_sizes(intermediate_size: int, num_tokens: int):
    kernels, twins = named_operations("triton"), named_operations("reference")
    states = drawn(num_tokens, 4096, seed=1)
    weight = drawn(2 * intermediate_size, 4096, seed=2, scale=2**-6)
    gate, up = (states.double() @ weight.double().T).chunk(2, -1)
    exact = torch.nn.functional.silu(gate) * up
    assert_as_exact_as_torch(kernels.gated_linear(states, weight), twins.gated_linear(states, weight), exact)


@pytest.mark.parametrize(("num_tokens", "in_fp8"), [(4, False), (6, False), (4, True)])
def test_early_starts_change_no_bit(num_tokens: int, in_fp8: bool, monkeypatch: pytest.MonkeyPatch):
    """Four layers one after another in a graph, replayed: nothing reads what is not there yet."""
    fused = fused_layer("llama", num_tokens, in_fp8)

    def four_layers() -> LayerOutput:
        output = fused(named_operations("triton"))
        for _ in range(3):
            output = fused._replace(states=output.states, residual=output.residual)(named_operations("triton"))
        return output

    for name in ("add_rms_norm", "combine_splits", "rotate_and_store", "skinny_linear", "slot_attention"):
        module = importlib.import_module(f"harness.models.fused.{name}")
        monkeypatch.setattr(module, "overlaps", lambda num_tokens: False)
    fused.refill(0, seed=1)
    expected = [tensor.clone() for tensor in four_layers()]
    monkeypatch.undo()
    fused.refill(0, seed=1)
    four_layers()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = four_layers()
    for _ in range(20):
        fused.refill(0, seed=1)
        graph.replay()
        for mine, wanted in zip(found, expected, strict=True):
            same(mine[..., :NUM_OWN, :, :], wanted[..., :NUM_OWN, :, :])


def test_cache_beyond_2_31_elements():
    """A key cache of 4.4 GB whose last slots are used."""
    num_far = 2**31 // (8 * 16384 * 128) + 1
    near = rows_of([0, 1], [16380, 77], (2, 8, 16384, 128), num_filled=4, dtype=torch.bfloat16)
    keys, values = (torch.empty(num_far + 2, 8, 16384, 128, dtype=torch.bfloat16, device=CUDA) for _ in range(2))
    keys[num_far:], values[num_far:] = near.keys, near.values
    far = Rows(keys, values, near.slots + num_far, near.starts)
    kernels, twins = named_operations("triton"), named_operations("reference")
    queries = normal(2, 4, 32, 128, seed=4, dtype=torch.bfloat16)
    relative, absolute = attention_error(queries, near, 0.1)
    found, expected = kernels.slot_attention(queries, *far, 0.1), twins.slot_attention(queries, *near, 0.1)
    torch.testing.assert_close(found, expected, rtol=relative, atol=absolute)
    qkv, table = normal(8, 48 * 128, dtype=torch.bfloat16), normal(16384, 128)
    found, expected = kernels.rotate_and_store(qkv, table, *far), twins.rotate_and_store(qkv, table, *near)
    assert_rounded_alike(found, expected, 1, 8 * HALF_UNIT)
    assert_rounded_alike(keys[num_far:].nan_to_num(), near.keys.nan_to_num(), 1, 8 * HALF_UNIT)
    same(values[num_far:], near.values)


PRODUCTS_OF_8_BITS = {
    "queries, keys, values": (6144, 4096, False),
    "down": (4096, 14336, False),
    "gate and up": (28672, 4096, True),
    "few rows, which torch multiplies": (1000, 4096, False),
}


@pytest.mark.parametrize("num_tokens", [1, 16, 64, 96, 100, 200, 300])
@pytest.mark.parametrize(
    ("num_rows", "in_features", "gated"), PRODUCTS_OF_8_BITS.values(), ids=PRODUCTS_OF_8_BITS.keys()
)
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
