"""Products of a few tokens against their twins, how they are cut, and what goes to torch instead."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from harness.models.fused.reference import gated_linear as reference_gated_linear
from harness.models.fused.reference import linear as reference_linear
from harness.models.fused.tilings import MAX_TOKENS, MIN_FEATURES, Tiling, tiling_for
from tests.support.fused_rows import HALF_UNIT, normal, same
from tests.support.kernel_rounds import poisoned_allocations

IN = 64
SHARED_BYTES = 227 * 1024
"""Of a multiprocessor of an H100 or H200."""
EPS = torch.finfo(torch.float16).eps
# Rows: fewer than a tile's, as many, and a last program with few. 37 rows end within a tile.
TILINGS = {
    "rows of a tile": Tiling(16, 16, 16, 1, 2, 4),
    "fewer rows": Tiling(11, 16, 32, 1, 2, 4),
    "two shares": Tiling(11, 16, 16, 2, 2, 4),
    "uneven shares": Tiling(16, 16, 16, 3, 2, 4),
}


def inputs(num_tokens: int, num_rows: int, bias: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    states, weight = normal(num_tokens, IN, seed=1, dtype=torch.float16), normal(num_rows, IN, seed=2, scale=0.2)
    return states, weight.half(), normal(num_rows, seed=3, dtype=torch.float16) if bias else None


def float32_error(states: Tensor, weight: Tensor) -> float:
    """A sum of IN products and a bias is off by a rounding for each, of its largest possible size."""
    return HALF_UNIT * (IN + 2) * float((states.double().abs() @ weight.double().abs().T).max() + 4)


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("num_tokens", [1, 16, 17, 37, 70], ids=lambda count: f"{count} tokens")
@pytest.mark.parametrize("tiling", TILINGS.values(), ids=TILINGS.keys())
def test_kernel_equals_its_twin(tiling: Tiling, num_tokens: int, bias: bool):
    from harness.models.fused.skinny_linear import launch

    states, weight, added = inputs(num_tokens, 37, bias)
    with poisoned_allocations():
        found = launch(states, weight, added, tiling, gated=False)
    if tiling.num_splits > 1:
        assert found.shape == (tiling.num_splits, num_tokens, 37) and found.dtype == torch.float32
    else:
        assert found.shape == (num_tokens, 37) and found.dtype == torch.float16
    total = found.double().sum(0) if tiling.num_splits > 1 else found.double()
    expected = reference_linear(states.double(), weight.double(), None if added is None else added.double())
    rounding = 0 if tiling.num_splits > 1 else EPS / 2
    torch.testing.assert_close(total, expected, rtol=rounding, atol=float32_error(states, weight))


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("num_tokens", [3, 70], ids=lambda count: f"{count} tokens")
@pytest.mark.parametrize("tiling", list(TILINGS.values())[:2], ids=list(TILINGS)[:2])
def test_gated_kernel_equals_its_twin(tiling: Tiling, num_tokens: int, bias: bool):
    from harness.models.fused.skinny_linear import launch

    states, weight, added = inputs(num_tokens, 2 * 37, bias)
    with poisoned_allocations():
        found = launch(states, weight, added, tiling, gated=True)
    expected = reference_gated_linear(states, weight, added)
    # Both projections, silu and the product are rounded; where the last bit of a projection differs, so does what
    # follows: silu by at most 1.1 times as much, which up multiplies.
    largest = float(functional.linear(states, weight, added).abs().max())
    off = float32_error(states, weight)
    torch.testing.assert_close(found, expected, rtol=4 * EPS, atol=(EPS * largest + 2 * off) * 1.1 * largest)
    assert float((found == expected).double().mean()) > 0.9


def test_states_of_any_shape_and_layout():
    from harness.models.fused.skinny_linear import launch

    states, weight, _ = inputs(6, 37, bias=False)
    tiling = TILINGS["two shares"]
    flat = launch(states, weight, None, tiling, gated=False)
    same(launch(states.view(2, 3, IN), weight, None, tiling, gated=False), flat.view(2, 2, 3, 37))
    same(launch(states.T.contiguous().T, weight, None, tiling, gated=False), flat)


@pytest.mark.parametrize("num_tokens", [6, 70], ids=lambda count: f"{count} tokens")
def test_rows_may_be_written_with_gaps(num_tokens: int):
    from harness.models.fused.skinny_linear import launch

    states, weight, _ = inputs(num_tokens, 37, bias=False)
    tiling = next(each for each in TILINGS.values() if each.num_splits == 1)
    memory = torch.full((num_tokens, 3, 37), 7.0, dtype=states.dtype, device=states.device)
    found = launch(states, weight, None, tiling, gated=False, out=memory[:, 1])
    assert found.data_ptr() == memory[:, 1].data_ptr()
    same(found, launch(states, weight, None, tiling, gated=False))
    assert bool((memory[:, ::2] == 7).all()), "nothing beside them"


@pytest.mark.parametrize("wrong", ["shape", "dtype", "gaps"])
def test_rows_that_cannot_be_written_are_refused_by_all(wrong: str):
    """By the kernel, where torch multiplies, and by the twin."""
    from harness.models.fused.linear import linear
    from harness.models.fused.skinny_linear import launch

    states, weight, _ = inputs(6, 37, bias=False)
    tiling = next(each for each in TILINGS.values() if each.num_splits == 1)
    out = torch.empty(6, 74, dtype=torch.float32 if wrong == "dtype" else states.dtype, device=states.device)
    out = out[:, ::2] if wrong == "gaps" else out[:1, :37] if wrong == "shape" else out[:, :37]
    for multiply in (partial(launch, tiling=tiling, gated=False), linear, reference_linear):
        with pytest.raises(ValueError, match=r"out must be \[6, 37\] torch.float16, a matrix .*, found \["):
            multiply(states, weight, None, out=out)


def test_shares_are_not_written_elsewhere():
    from harness.models.fused.skinny_linear import launch

    states, weight, _ = inputs(6, 37, bias=False)
    with pytest.raises(ValueError, match="out is for a tiling with num_splits 1, found 2"):
        launch(states, weight, None, TILINGS["two shares"], gated=False, out=torch.empty(6, 37))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_small_products_are_torchs(dtype: torch.dtype):
    from harness.models.fused.linear import gated_linear, linear

    states, weight, added = (None if tensor is None else tensor.to(dtype) for tensor in inputs(5, 38, bias=True))
    assert states is not None and weight is not None
    same(linear(states, weight, added, splits=True), functional.linear(states, weight, added))
    if dtype != torch.bfloat16:  # Triton's interpreter cuts bfloat16 off where a GPU rounds
        found, expected = (
            gated_linear(states.view(1, 5, IN), weight, added),
            reference_gated_linear(states, weight, added),
        )
        torch.testing.assert_close(found, expected[None], rtol=4 * torch.finfo(dtype).eps, atol=1e-6)


def test_float32_is_torchs_at_any_size():
    from harness.models.fused.linear import tiling_of

    states, weight = torch.empty(16, 4096, device="meta"), torch.empty(6144, 4096, device="meta")
    assert tiling_of(states, weight, gated=False, may_split=True) is None
    assert tiling_of(states.half(), weight.half(), gated=False, may_split=True) is not None


def test_what_would_be_misread_is_refused():
    from harness.models.fused.linear import gated_linear
    from harness.models.fused.skinny_linear import launch

    states, weight, added = inputs(2, 37, bias=True)
    tiling = TILINGS["rows of a tile"]
    with pytest.raises(ValueError, match=r"states must be \[2, 64\] torch.float16 without gaps, found \[2, 32\]"):
        launch(states[:, :32], weight, None, tiling, gated=False)
    with pytest.raises(ValueError, match=r"weight must be .* without gaps"):
        launch(states, weight.T.contiguous().T, None, tiling, gated=False)
    with pytest.raises(ValueError, match=r"bias must be \[37\]"):
        launch(states, weight, inputs(1, 36, bias=True)[2], tiling, gated=False)
    with pytest.raises(ValueError, match=r"weight must be \[2 I, IN\], found \[37, 64\]"):
        gated_linear(states, weight, added)


@pytest.mark.parametrize(
    ("major", "num_multiprocessors", "is_torchs"),
    [(9, 132, False), (9, 114, True), (8, 108, True), (10, 148, True)],
    ids=["as measured", "fewer multiprocessors", "older", "newer"],
)
def test_gpus_that_nothing_was_measured_on_are_torchs(
    major: int, num_multiprocessors: int, is_torchs: bool, monkeypatch: pytest.MonkeyPatch
):
    from harness.models.fused.linear import is_as_measured, tiling_of

    class OnGpu:
        """Stands for a weight in a GPU's memory."""

        dtype, shape, is_cuda, device = torch.bfloat16, torch.Size((6144, 4096)), True, torch.device("cuda")

    found = SimpleNamespace(major=major, minor=0, multi_processor_count=num_multiprocessors)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found)
    states: Any = torch.empty(16, 4096, device="meta")
    weight: Any = OnGpu()
    is_as_measured.cache_clear()
    assert (tiling_of(states, weight, gated=False, may_split=True) is None) is is_torchs
    is_as_measured.cache_clear()


class Product(NamedTuple):
    """What tiling_for is asked, but for the tokens."""

    in_features: int
    num_rows: int
    gated: bool = False
    may_split: bool = False


QKV, OUTPUT = Product(4096, 6144, may_split=True), Product(4096, 4096, may_split=True)
GATE_UP, QWEN_GATE_UP = Product(4096, 28672, gated=True), Product(4096, 24576, gated=True)
DOWN, QWEN_DOWN = Product(14336, 4096, may_split=True), Product(12288, 4096, may_split=True)
LOGITS, QWEN_LOGITS = Product(4096, 128256), Product(4096, 151936)
FEATURES = Product(8192, 4096)
MEASURED = {QKV, OUTPUT, GATE_UP, QWEN_GATE_UP, DOWN, QWEN_DOWN, LOGITS, QWEN_LOGITS, FEATURES}
FASTER = {
    16: {
        QKV: Tiling(47, 64, 128, 2, 5, 4),
        OUTPUT: Tiling(63, 64, 128, 2, 5, 4),
        GATE_UP: Tiling(55, 64, 128, 1, 3, 4),
        QWEN_GATE_UP: Tiling(47, 64, 128, 1, 3, 4),
        DOWN: Tiling(63, 64, 128, 2, 5, 4),
        QWEN_DOWN: Tiling(63, 64, 128, 2, 5, 4),
        LOGITS: Tiling(243, 256, 128, 1, 3, 8),
        QWEN_LOGITS: Tiling(231, 256, 128, 1, 3, 8),
    },
    64: {
        OUTPUT: Tiling(63, 64, 64, 2, 8, 4),
        GATE_UP: Tiling(55, 64, 64, 1, 4, 4),
        QWEN_GATE_UP: Tiling(47, 64, 64, 1, 4, 4),
        DOWN: Tiling(63, 64, 64, 2, 8, 4),
        QWEN_DOWN: Tiling(63, 64, 64, 2, 8, 4),
        LOGITS: Tiling(122, 128, 128, 1, 4, 4),
        QWEN_LOGITS: Tiling(128, 128, 128, 1, 4, 4),
    },
    96: {
        OUTPUT: Tiling(63, 64, 128, 2, 5, 4),
        GATE_UP: Tiling(109, 128, 64, 1, 5, 8),
        DOWN: Tiling(63, 64, 128, 2, 5, 4),
        QWEN_DOWN: Tiling(63, 64, 128, 2, 5, 4),
    },
}
"""The tilings that were measured to be faster than torch, by tokens."""


@pytest.mark.parametrize("product", sorted(MEASURED), ids=str)
@pytest.mark.parametrize("num_tokens", FASTER)
def test_measured_products_have_the_tiling_that_was_faster_or_none(num_tokens: int, product: Product):
    assert tiling_for(num_tokens, *product) == FASTER[num_tokens].get(product)


@pytest.mark.parametrize(("fewer", "num_tokens"), [(1, 16), (17, 64), (33, 64), (65, 96)])
@pytest.mark.parametrize("product", sorted(MEASURED), ids=str)
def test_other_numbers_of_tokens_are_cut_as_the_next_measured(product: Product, fewer: int, num_tokens: int):
    assert tiling_for(fewer, *product) == tiling_for(num_tokens, *product)


@pytest.mark.parametrize("num_tokens", [1, 16, 17, 33, 64, 65, MAX_TOKENS])
@pytest.mark.parametrize("may_split", [True, False], ids=["shares", "no shares"])
@pytest.mark.parametrize("gated", [True, False], ids=["gated", "not gated"])
def test_tilings_fit(gated: bool, may_split: bool, num_tokens: int):
    found = 0
    for in_features in (4096, 4224, 5120, 8192, 14336, 28672):
        for num_rows in (2048, 4096, 5120, 6144, 8192, 10240, 24576, 28672, 32000, 57344, 128256, 151936, 262144):
            tiling = tiling_for(num_tokens, in_features, num_rows, gated, may_split)
            if tiling is None:
                continue
            found += 1
            parts = 2 if gated else 1
            num_programs = -(-num_rows // parts // tiling.rows)
            assert tiling.block_out // 2 < tiling.rows <= tiling.block_out
            assert (num_programs - 1) * tiling.rows < num_rows // parts
            assert in_features % (tiling.block_in * tiling.num_splits) == 0
            assert (may_split and not gated) or tiling.num_splits == 1
            columns = sum(Tiling.columns(num_tokens))
            stage_bytes = 2 * tiling.block_in * (parts * tiling.block_out + columns)
            assert stage_bytes * tiling.num_stages <= SHARED_BYTES
    # Without a gate and without shares, torch takes more than 64 tokens.
    assert (found > 0) is (gated or may_split or num_tokens <= 64)


@pytest.mark.parametrize("num_tokens", range(1, MAX_TOKENS + 1))
def test_two_products_hold_all_tokens(num_tokens: int):
    first, more = Tiling.columns(num_tokens)
    assert first + more == min(columns for columns in (16, 32, 64, 96) if columns >= num_tokens)
    assert first in (16, 32, 64) and more in (0, 32)
    with pytest.raises(ValueError, match="at most 256 tokens, found 257"):
        Tiling.columns(257)


@pytest.mark.parametrize(
    ("num_tokens", "in_features", "num_rows"),
    [
        (MAX_TOKENS + 1, 4096, 4096),
        (0, 4096, 4096),
        (16, 4096, 64),
        (16, MIN_FEATURES // 2, 4096),
        (16, 4160, 4096),
    ],
    ids=["many tokens", "no tokens", "few rows", "short tokens", "an odd width"],
)
def test_other_shapes_are_torchs(num_tokens: int, in_features: int, num_rows: int):
    assert tiling_for(num_tokens, in_features, num_rows, gated=False, may_split=True) is None
