"""Kernels of a layer that start early: each of them, and only where a GPU can."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.models.fused.tilings import Tiling
from tests.support.fused_rows import DEVICE, normal, rows_of

KERNELS = {
    "add_rms_norm": "_add_rms_norm_kernel",
    "combine_splits": "_combine_splits_kernel",
    "gated_activation": "_silu_mul_kernel",
    "join_embedded": "_join_embedded_kernel",
    "rotate_and_store": "_rotate_and_store_kernel",
    "skinny_linear": "_skinny_linear_kernel",
    "slot_attention": "_slot_attention_kernel",
}


class NotedKernel:
    """Stands before a kernel, and notes the constants of its launches instead of running it."""

    def __init__(self) -> None:
        self.constants: list[dict[str, Any]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda **constants: self.constants.append(constants)


def launch_everything() -> None:
    from harness.models.fused.gated_activation import silu_mul
    from harness.models.fused.operations import named_operations
    from harness.models.fused.skinny_linear import launch

    operations = named_operations("triton")
    states, weight = normal(2, 64, dtype=torch.float16), normal(64, 64, dtype=torch.float16)
    operations.add_rms_norm(states, None, weight[0], 1e-5)
    operations.join_embedded(torch.zeros(2, dtype=torch.int64, device=DEVICE), weight, states)
    silu_mul(states)
    launch(states, weight, None, Tiling(16, 16, 16, 1, 2, 4), gated=False)
    rows = rows_of([0, 1], [40, 50], (2, 2, 256, 16), num_filled=0)
    table: Tensor = torch.zeros(256, 16, device=DEVICE)
    queries = operations.rotate_and_store(normal(2, 8 * 16), table, *rows)
    operations.slot_attention(queries, *rows, 0.25)


@pytest.mark.parametrize("can", [True, False], ids=["a GPU that can", "another device"])
def test_every_kernel_of_a_layer_starts_early_where_it_can(can: bool, monkeypatch: pytest.MonkeyPatch):
    noted = {name: NotedKernel() for name in KERNELS}
    for name, kernel in KERNELS.items():
        module = importlib.import_module(f"harness.models.fused.{name}")
        monkeypatch.setattr(module, kernel, noted[name])
        monkeypatch.setattr(module, "overlaps", lambda num_tokens: can)
    launch_everything()
    for name, kernel in noted.items():
        assert len(kernel.constants) == 1, name
        assert kernel.constants[0]["OVERLAPS"] is kernel.constants[0]["launch_pdl"] is can, name


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs Triton's interpreter, which runs where there is no GPU")
def test_nothing_starts_early_in_the_interpreter():
    from harness.models.fused.overlap import overlaps

    assert overlaps(64) is False


def test_kernels_of_few_tokens_do_not_overlap(monkeypatch: pytest.MonkeyPatch):
    from harness.models.fused import overlap

    monkeypatch.setattr(overlap, "knobs", SimpleNamespace(runtime=SimpleNamespace(interpret=False)))
    target = SimpleNamespace(backend="cuda", arch=90)
    monkeypatch.setattr(overlap, "driver", SimpleNamespace(active=SimpleNamespace(get_current_target=lambda: target)))
    assert [overlap.overlaps(count) for count in (1, 16, 17, 2048)] == [False, False, True, True]
    target.arch = 80
    assert not overlap.overlaps(64)
