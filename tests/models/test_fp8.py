"""Weights, keys and values of 8 bits: how they are rounded, and that every way to run them takes the same numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from harness.backends.local.model_store import ModelStore
from harness.config.backend import Local
from harness.config.models import TargetConfig, Weights
from harness.models.fp8_linear import FP8, Fp8Linear, dequantized, quantize, to_fp8
from harness.models.fused.fuse import packed, query_key_value
from harness.models.fused.reference import gated_linear as reference_gated_linear
from harness.models.fused.reference import linear as reference_linear
from harness.models.fused.reference import rotate_and_store as reference_rotate_and_store
from harness.models.fused.tilings import Tiling, tiling_for
from harness.models.target import TargetModel, load_target
from tests.models.test_fused_attention import NUM_TOKENS, SLOTS, STARTS, case, norms_of, table_of
from tests.models.test_fused_skinny_linear import EPS, TILINGS, float32_error
from tests.support.fused_rows import DEVICE, HALF_UNIT, check_attention, normal, rows_of, same
from tests.support.kernel_rounds import poisoned_allocations
from tests.support.tiny_models import random_causal_lm, random_tokens, save_target_folder

NUMBERS = torch.arange(256, dtype=torch.uint8).view(FP8).float()
NUMBERS = NUMBERS[~NUMBERS.isnan()].unique()
"""All that e4m3 holds."""


def edges() -> Tensor:
    """Every number of e4m3, every middle between two, what lies next to those, and what lies beyond."""
    middles = (NUMBERS[1:] + NUMBERS[:-1]) / 2
    near = [middles.nextafter(torch.tensor(limit)) for limit in (-1e9, 1e9)]
    return torch.cat((NUMBERS, middles, *near, torch.tensor([500.0, -1e30, torch.inf, 1e-30, torch.nan])))


def test_rounding_is_to_the_nearest_number():
    values = edges()[:-1]
    found = to_fp8(values).float()
    distances = (values.clamp(-448, 448)[:, None] - NUMBERS).abs()
    assert torch.equal((found - values.clamp(-448, 448)).abs(), distances.min(dim=1).values)
    assert to_fp8(torch.tensor([torch.nan])).float().isnan().all()


def test_rows_have_the_least_power_of_two_that_holds_them():
    """Would catch a scale that cuts the largest weight off, and one for the whole weight."""
    weight = normal(6, 40, seed=1) * torch.tensor([1.0, 1e-3, 0.0, 30.0, 7e-6, 1.0])[:, None]
    weight[5] = torch.linspace(-448, 448, 40)
    codes, scales = quantize(weight)
    assert codes.dtype is FP8 and torch.equal(scales.log2(), scales.log2().round())
    largest = weight.abs().amax(dim=1) / scales
    assert (largest[[0, 1, 3, 4, 5]] > 224).all() and (largest <= 448).all() and scales[2] == 1
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        wide = dequantized(codes, scales, dtype).double()
        assert torch.equal(wide, codes.double() * scales.double()[:, None]) or dtype is torch.float16
        # e4m3 keeps four bits, float16 none below 2^-24
        assert ((wide - weight.double()).abs() <= weight.abs() / 16 + scales[:, None] * 2.0**-10 + 2.0**-25).all()


def test_a_weight_that_is_no_number_stays_none():
    """Would catch an infinity that becomes 448, which no check behind it finds."""
    weight = torch.ones(3, 4)
    weight[0, 1], weight[1, 1] = torch.inf, torch.nan
    found = dequantized(*quantize(weight), torch.float32)
    assert found[0].isnan().any() and found[1].isnan().any() and torch.equal(found[2], weight[2])


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("is_fused", [False, True], ids=["unfused", "fused"])
def test_a_target_computes_with_its_rounded_weights(kind, is_fused, tmp_path):
    """Would catch scales of another row, which packing could exchange, and projections that are left as they were."""
    causal_lm = random_causal_lm(kind, num_hidden_layers=2)
    folder = save_target_folder(tmp_path / "target", causal_lm)
    for module in causal_lm.model.layers.modules():
        if type(module) is torch.nn.Linear:
            module.weight.data = dequantized(*quantize(module.weight), torch.float32)
    in_fp8, rounded = load_target(folder, in_fp8=True), TargetModel(causal_lm, None)
    layers = in_fp8.causal_lm.model.layers
    kinds = {type(module) for module in layers.modules() if hasattr(module, "in_features")}
    assert kinds == {Fp8Linear} and type(in_fp8.causal_lm.lm_head) is torch.nn.Linear
    assert in_fp8.dtype is torch.float32 and in_fp8.widens_fp8 and "8 bits are widened" in in_fp8.fallbacks[-1]
    joint = packed(query_key_value(layers[0].self_attn))
    assert joint.scales is not None and len(joint.scales) == len(joint.weight) and joint.weight.dtype is FP8
    if is_fused:
        assert in_fp8.fuse() is None and rounded.fuse() is None
    tokens, positions = random_tokens(2, 9), torch.arange(9).expand(2, 9)
    found, expected = (
        model.forward(tokens, positions, model.new_cache(2, 12).view(slice(0, 2), positions, 9)).hidden
        for model in (in_fp8, rounded)
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    plain = load_target(folder).forward(tokens, positions, None).hidden
    assert (plain - found).abs().max() > 1e-3


@pytest.mark.parametrize("num_tokens", [1, 70, 200], ids=lambda count: f"{count} tokens")
@pytest.mark.parametrize(
    ("tiling", "is_gated"),
    [(TILINGS["fewer rows"], False), (TILINGS["uneven shares"], False), (TILINGS["fewer rows"], True)],
    ids=["rows", "shares", "gated"],
)
def test_kernel_of_products_equals_its_twin(tiling: Tiling, num_tokens: int, is_gated: bool):
    """Wider weights take 96 tokens at most. Would catch scales of the gate on up, or of a neighbouring row."""
    from harness.models.fused.skinny_linear import launch

    num_rows = 2 * 37 if is_gated else 37
    states, bias = normal(num_tokens, 64, seed=1, dtype=torch.float16), normal(num_rows, seed=3, dtype=torch.float16)
    # rows of very different sizes
    codes, scales = quantize(normal(num_rows, 64, seed=2) * torch.linspace(-7, -1, num_rows).exp2()[:, None])
    with poisoned_allocations():
        found = launch(states, codes, bias, tiling, is_gated, scales)
    total = found.double().sum(0) if tiling.num_splits > 1 else found.double()
    off = float32_error(states, dequantized(codes, scales, torch.float32))
    if is_gated:
        expected = reference_gated_linear(states, codes, bias, scales)
        largest = float(reference_linear(states, codes, bias, scales).abs().max())
        atol = (EPS * largest + 2 * off) * 1.1 * largest
        torch.testing.assert_close(total, expected.double(), rtol=4 * EPS, atol=atol)
    else:
        expected = reference_linear(states.double(), codes, bias.double(), scales)
        torch.testing.assert_close(total, expected, rtol=EPS / 2 if tiling.num_splits == 1 else 0, atol=off)


def test_kernels_round_and_widen_as_torch_does():
    """Every number, every middle, what lies next to it, infinity and no number."""
    from harness.models.fused.rotate_and_store import rotate_and_store
    from harness.models.fused.widen import widen

    values = torch.cat((edges(), -edges()))
    values = torch.nn.functional.pad(values, (0, -len(values) % 8)).view(-1, 8).to(DEVICE)
    # values are stored as they are: queries and keys of nothing beside them
    qkv = torch.cat((torch.zeros_like(values), torch.zeros_like(values), values), dim=1)
    cache = torch.zeros(1, 1, len(values), 8, dtype=FP8, device=DEVICE)
    slots = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    found = cache.clone()
    rotate_and_store(qkv, table_of(8, len(values)), cache, found, slots, slots, dtype=torch.float32)
    same(found[0, 0].float(), to_fp8(values).float())
    codes = torch.arange(256, dtype=torch.uint8, device=DEVICE).view(FP8).view(2, 128)
    scales = torch.tensor([2.0**-9, 4.0], device=DEVICE)
    for dtype in (torch.float32, torch.float16):
        same(widen(codes, scales, dtype), dequantized(codes, scales, dtype))


@pytest.mark.parametrize(
    ("shape", "is_read"),
    [("llama3_8b", True), ("qwen3_8b", True), ("llama3_70b", False), ("llama32_1b", False)],
)
def test_sizes_without_a_kernel_are_told(shape, is_read):
    """Would catch a record that says nothing of weights that are widened."""
    backend = Local(device="cpu", dtype="bfloat16", fused=True, weight_dtype="fp8")
    target = ModelStore().models(TargetConfig(shape=shape, weights=Weights.random), backend).meta_models.target
    assert target.widens_fp8 is not is_read


def test_many_tokens_and_small_products_are_torchs():
    from harness.models.fused.linear import linear, tiling_of

    def tiling(num_tokens: int, dtype: torch.dtype = torch.bfloat16) -> Tiling | None:
        states = torch.empty(num_tokens, 4096, dtype=dtype, device="meta")
        return tiling_of(states, torch.empty(6144, 4096, dtype=FP8, device="meta"), gated=False, may_split=True)

    assert None not in (tiling(1), tiling(256))
    assert tiling(257) is None and tiling(1, torch.float32) is None
    states, (codes, scales) = normal(5, 64, seed=1), quantize(normal(38, 64, seed=2))
    same(linear(states, codes, None, scales, splits=True), reference_linear(states, codes, None, scales))


@pytest.mark.parametrize(("num_rows", "gated"), [(6144, False), (4096, False), (28672, True)])
@pytest.mark.parametrize("num_tokens", [1, 16, 96, 128, 256])
def test_shares_of_real_products_run_at_once(num_rows: int, gated: bool, num_tokens: int):
    tiling = tiling_for(num_tokens, 4096, num_rows, gated, not gated, in_fp8=True)
    assert tiling is not None
    num_programs = -(-(num_rows // 2 if gated else num_rows) // tiling.rows) * tiling.num_splits
    assert num_programs <= 132 * (2 if gated else 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("in_shares", [False, True], ids=["whole", "shares"])
def test_keys_and_values_are_rounded_where_they_are_stored(dtype, in_shares):
    """Would catch keys that are rounded before they turn, and a type of the queries that is taken from the cache."""
    from harness.models.fused.rotate_and_store import rotate_and_store

    qkv, rows = case(6, 2, 8, dtype)
    # some beyond what 8 bits hold, and some below their least number
    qkv *= torch.logspace(-9, 9, len(qkv), 2, dtype=dtype, device=DEVICE)[:, None]
    given = torch.stack((qkv.float(), torch.zeros_like(qkv).float())) if in_shares else qkv
    table, norms = table_of(8), norms_of(8, dtype)
    wide = rows._replace(keys=rows.keys.clone(), values=rows.values.clone())
    queries = reference_rotate_and_store(qkv, table, *wide, **norms)
    kernel, twin = (rows._replace(keys=rows.keys.to(FP8), values=rows.values.to(FP8)) for _ in range(2))
    with poisoned_allocations():
        found = rotate_and_store(given, table, *kernel, **norms, dtype=dtype)
    assert found.dtype is dtype
    torch.testing.assert_close(found, queries, rtol=2 * EPS, atol=1e-5)
    reference_rotate_and_store(given, table, *twin, **norms, dtype=dtype)
    same(twin.keys.float(), to_fp8(wide.keys).float())
    same(kernel.values.float(), to_fp8(wide.values).float())
    written = ~wide.keys.isnan()
    assert torch.equal(written, ~kernel.keys.float().isnan()) and int(written.sum()) >= len(SLOTS) * NUM_TOKENS
    # a sum of squares in another order may move a key over a boundary
    assert float((kernel.keys.float() != twin.keys.float())[written].double().mean()) <= 64 * HALF_UNIT / EPS
    assert max(STARTS) < rows.keys.shape[2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_attention_reads_what_was_rounded(dtype):
    rows = rows_of([2, 0, 0, 3, 3], [34, 0, 3, 1, 1], (4, 2, 37, 16), num_filled=3)
    in_fp8 = rows._replace(keys=rows.keys.to(FP8), values=rows.values.to(FP8))
    check_attention(in_fp8, 3, 6, dtype=dtype)


def test_fused_and_unfused_layers_read_the_same_cache(tmp_path):
    """Would catch a cache that only one of them rounds."""
    folder, outputs = save_target_folder(tmp_path / "target", random_causal_lm("llama", num_hidden_layers=2)), []
    tokens, positions = random_tokens(2, 9), torch.arange(9).expand(2, 9)
    for is_fused in (False, True):
        target = load_target(folder)
        assert not is_fused or target.fuse() is None
        target.cache_dtype = FP8
        cache = target.new_cache(2, 12)
        assert cache.num_bytes == 2 * 2 * 2 * 2 * 12 * 8 and cache.dtype is torch.float32
        first = cache.view(slice(0, 2), positions[:, :6], 6)
        target.forward(tokens[:, :6], positions[:, :6], first)
        second = cache.view(slice(0, 2), positions[:, 6:], 9)
        outputs.append(target.forward(tokens[:, 6:], positions[:, 6:], second).hidden)
        assert cache.keys[0].dtype is FP8
    torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-4)
    exact = load_target(folder).forward(tokens, positions, None).hidden[:, 6:]
    assert (exact - outputs[0]).abs().max() > 1e-3
